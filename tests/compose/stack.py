"""The compose stack in a copy of the working tree, under a project of its own, as its operator would run it."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace_cli.client import Client

ROOT = Path(__file__).parents[2]
PROJECT = "headrace-test"
BUILD_S, COMMAND_S = 3600.0, 600.0


def missing_engine() -> str:
    """Why no stack can be run here; empty if one can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for words in (["info"], ["compose", "version"], ["buildx", "version"]):
        if subprocess.run(["docker", *words], capture_output=True, check=False).returncode != 0:
            return f"`docker {' '.join(words)}` fails"
    return ""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.1)
    return value


def copy_tree(target: Path) -> None:
    """What git would know of the working tree, and nothing that it ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, names):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / name)


def wheels_image() -> str:
    """An image with the CPU-only torch that pip finds on this disk; else the empty one, and torch is downloaded."""
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        wheels = sorted(Path(place.removeprefix("file://")).glob("torch-*+cpu-*.whl"))
        if wheels:
            names = [wheel.name for wheel in wheels]
            with subprocess.Popen(["tar", "-C", wheels[0].parent, "-c", *names], stdout=subprocess.PIPE) as packed:
                subprocess.run(["docker", "import", "-", f"{PROJECT}-wheels"], stdin=packed.stdout, check=True)
            return f"{PROJECT}-wheels"
    return "scratch"


class Stack:
    """One project. ``environ`` is what its commands, and those of the page, run with."""

    def __init__(self, folder: Path, project: str = PROJECT) -> None:
        self.folder = folder
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("COMPOSE_", "HEADRACE_"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COMPOSE_PROJECT_NAME": project,
            "HEADRACE_TAG": "test",
            "HEADRACE_HTTP_PORTS": "18080-18099",
            "HEADRACE_GRPC_PORTS": "18180-18199",
            "HEADRACE_WHEELS": wheels_image(),
            "no_proxy": "*",
        }

    def run(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        """A command's standard output; its failure fails the test and shows what it said."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return done.stdout

    def compose(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        return self.run("docker", "compose", *words, timeout_s=timeout_s)

    def start(self) -> None:
        self.compose("build", timeout_s=BUILD_S)
        self.compose("run", "--build", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "init")
        self.compose("up", "--detach", "--wait", timeout_s=BUILD_S)
        with self.client() as client:
            wait_until(client.models, "the gateway has the model's card")

    @property
    def api_key(self) -> str:
        return self.compose("exec", "-T", "controlplane", "cat", "/var/lib/headrace/api-key").strip()

    @property
    def ca(self) -> bytes:
        return (self.folder / "secrets/ca.pem").read_bytes()

    def address(self, port: int, index: int = 1) -> str:
        """Where one of the gateways answers on this host."""
        shown = self.compose("port", "--index", str(index), "gateway", str(port))
        return f"127.0.0.1:{shown.strip().rpartition(':')[2]}"

    @contextlib.contextmanager
    def client(self, index: int = 1) -> Iterator[Client]:
        with Client(self.address(8081, index), api_key=self.api_key, ca=self.ca) as client:
            yield client

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def inspect(self, service: str, template: str) -> str:
        return self.run("docker", "inspect", "--format", template, self.container(service)).strip()

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):
            self.compose("--profile", "*", "down", "--volumes", "--remove-orphans")
