"""A Headrace on this host, as its own command shows it: which process is what, so that one can be killed.

Knows the output of ``headrace status --json`` and where the state directory keeps Redis's configuration; nothing else.
"""

import asyncio
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_conformance.tolerant import a_list, a_text, an_object, parsed

COMPONENTS = ("worker", "router", "policy", "controlplane", "redis")


class NoPlatform(Exception):
    """There is no local platform to control: one sentence that says why."""


@dataclass(frozen=True)
class Platform:
    """``state_dir`` is the platform's; every question asks the running processes anew."""

    state_dir: Path

    async def pid(self, component: str) -> int:
        """Pid of a component that runs and is ready; raises NoPlatform while there is none."""
        if component == "redis":
            return await self._redis_pid()
        for service in await self._services():
            name = a_text(service.get("name")).partition("/")[0]
            if name == component and service.get("ready") is True and isinstance(service.get("pid"), int):
                return int(service["pid"])
        raise NoPlatform(f"no {component} is ready in {self.state_dir}")

    async def wait_for_another(self, component: str, than: int, deadline_s: float) -> float:
        """Seconds until the component is ready under another pid; raises NoPlatform if it is not in time."""
        clock = asyncio.get_running_loop().time
        started = clock()
        while clock() - started < deadline_s:
            try:
                if await self.pid(component) != than:
                    return clock() - started
            except NoPlatform:
                pass
            await asyncio.sleep(0.25)
        raise NoPlatform(f"{component} did not come back within {deadline_s:g} s")

    async def _services(self) -> list[dict[str, Any]]:
        command = shutil.which("headrace") or str(Path(sys.executable).with_name("headrace"))
        environment = {**os.environ, "HEADRACE_STATE_DIR": str(self.state_dir)}
        try:
            process = await asyncio.create_subprocess_exec(
                command, "status", "--json", env=environment,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise NoPlatform("the command headrace is not on the PATH") from None
        output, _ = await process.communicate()
        return [an_object(one) for one in a_list(an_object(parsed(output)).get("services"))]

    async def _redis_pid(self) -> int:
        path = self._redis_socket()
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise NoPlatform(f"Redis does not answer at {path}: {error}") from None
        try:
            writer.write(b"INFO server\r\n")
            text = await asyncio.wait_for(reader.readuntil(b"process_id:"), 2.0) + await reader.readline()
        except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
            raise NoPlatform("Redis is not ready") from None
        finally:
            writer.close()
        return int(text.rpartition(b":")[2])

    def _redis_socket(self) -> str:
        try:
            lines = (self.state_dir / "services/redis/redis.conf").read_text("utf-8").splitlines()
        except OSError:
            raise NoPlatform(f"{self.state_dir} has no Redis of its own") from None
        return next(line.partition(" ")[2] for line in lines if line.startswith("unixsocket "))


def kill(pid: int) -> None:
    """SIGKILL; a process that is already gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
