"""The process launcher keeps to what every launcher keeps to."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_controlplane.launcher.process import ProcessLauncher
from tests.launchers import LauncherContract


class Host:
    """This host, with launchers over one directory."""

    limit_s = 20.0

    def __init__(self, root: Path) -> None:
        self._root, self._made = root, list[ProcessLauncher]()

    def launcher(self, wall: Callable[[], float] = time.time) -> ProcessLauncher:
        self._made.append(ProcessLauncher(self._root, wall=wall))
        return self._made[-1]

    def log(self) -> str:
        path = self._root / "cpu-0.log"
        return path.read_text() if path.exists() else ""

    def crash(self) -> None:
        (seen,) = self._made[-1].observe()
        os.kill(seen.pid, signal.SIGKILL)

    def close(self) -> None:
        for child in [child for launcher in self._made for child in launcher._children.values()]:
            if child.poll() is None:
                child.kill()
            child.wait()


class TestProcessLauncher(LauncherContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Host]:
        host = Host(tmp_path)
        yield host
        host.close()
