"""A virtual environment that holds one distribution of ours and what that declares, and nothing else.

Third-party distributions are linked file by file from the running environment, so that no network is needed. Knows
nothing of what the distributions do.
"""

import contextlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = {
    "headrace-protos": "protos",
    "headrace-kit": "services/kit",
    "headrace-gateway": "services/gateway",
    "headrace-policy": "services/policy",
    "headrace-router": "services/router",
    "headrace-controlplane": "services/controlplane",
    "headrace-worker": "services/worker",
    "headrace-cli": "tools/cli",
    "headrace-conformance": "tools/conformance",
    "headrace-workload": "tools/workload",
    "headrace-bench": "tools/bench",
    "headrace-sim": "tools/sim",
}


def build_wheels(folder: Path) -> dict[str, Path]:
    """Builds every distribution of ours from a copy, without isolation: {name: wheel}. Takes a few seconds."""
    copies = []
    for source in SOURCES.values():
        copies.append(str(folder / "source" / source))
        # A build writes stubs beside their .proto; other tests import the ones in the tree.
        shutil.copytree(ROOT / source, copies[-1], ignore=shutil.ignore_patterns("__pycache__", "*_pb2*"))
    wheels = folder / "wheels"
    _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        *copies,
        "-w",
        wheels,
    )
    return {canonicalize_name(wheel.name.partition("-")[0]): wheel for wheel in wheels.glob("*.whl")}


def closure(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """The distribution and all that it requires on this machine, by canonical name; reads installed metadata only."""
    found: dict[str, Distribution] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        key, wanted = waiting.pop()
        if (key, wanted) in visited:
            continue
        visited.add((key, wanted))
        found[key] = distribution(key)
        for requirement in _requirements(found[key], wanted):
            waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def _requirements(dist: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, dist.requires or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


class CleanEnvironment:
    """A virtual environment in `folder` with `name`, its declared requirements, and not even pip."""

    def __init__(self, folder: Path, name: str, wheels: dict[str, Path]) -> None:
        venv.create(folder, symlinks=True)
        self._bin = folder / "bin"
        self._site = next(folder.glob("lib/python*/site-packages"))
        self.distributions = closure(name)
        for key, dist in self.distributions.items():
            if key not in wheels:
                self._link(dist)
        ours = [wheels[key] for key in self.distributions if key in wheels]
        _run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            self._bin / "python",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            *ours,
        )

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of this environment, which sees nothing of the outer one, for at most a minute."""
        return subprocess.run(
            [self._bin / command, *arguments],
            check=False,
            env={"PATH": str(self._bin)},
            cwd=self._site.parent,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @contextlib.contextmanager
    def process(self, log: Path, command: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a command of this environment beside the test, its output in `log`; killed if the test leaves it."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self._bin / command, *arguments],
                env={"PATH": str(self._bin)},
                cwd=self._site.parent,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _link(self, dist: Distribution) -> None:
        for file in dist.files or []:
            if file.parts[0] != ".." and file.suffix != ".pyc":
                target = self._site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(dist.locate_file(file))))


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, timeout=300)
