"""The same modules, compiled: mypyc makes extension modules of production's decisions and of the event core.

Nothing is written twice: the sources are copied to a folder that is named by their digest, compiled there once, and put
before everything else on the path of the process that simulates. A run gives the same figures to the last digit, in
about half the time. Needs mypy, setuptools and a C compiler. Knows no fleet.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from headrace_sim.errors import SimulationError

FOLDER = Path.home() / ".cache" / "headrace" / "compiled"
# What runs for every request, row or step.
_HOT = {
    "headrace_worker": (
        *("scheduling/*", "perf/attention", "perf/gemm", "perf/pipeline"),
        *("perf/resources", "perf/step", "perf/step_model"),
    ),
    "headrace_router": ("scoring", "prediction", "deadlines", "in_flight", "shortlist"),
    "headrace_sim": (
        *("clock", "job", "books", "optimism", "replica", "pipelined", "routing", "stage_timer", "step_timer"),
        "simulation",
    ),
}
# Reads and writes any dataclass by its fields, which compiled ones do not show.
_INTERPRETED = ("__init__.py", "__main__.py", "record.py")


def compiled_path(folder: Path = FOLDER) -> Path:
    """The folder to put on PYTHONPATH, made if it is not there (a minute). Raises SimulationError if it cannot be."""
    roots = {package: _root(package) for package in _HOT}
    ready = folder / _digest(roots.values())
    if ready.exists():
        return ready
    try:
        _make(folder, roots, ready)
    except OSError as error:
        raise SimulationError(f"--compiled: {folder} cannot be written to: {error}") from None
    return ready


def _make(folder: Path, roots: Mapping[str, Path], ready: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = Path(name) / "made"
        for package, root in roots.items():
            shutil.copytree(root, made / package, ignore=_all_but_sources)
        _compile(made)
        try:
            made.rename(ready)
        except OSError:
            # Another process that was faster may have taken the name.
            if not ready.exists():
                raise


def run_compiled(module: str, arguments: Sequence[str]) -> int:
    """`python -m module` with the compiled modules; its exit status."""
    paths = [str(compiled_path()), os.environ.get("PYTHONPATH", "")]
    # A simulation computes on one core: threads that wait for matrices to multiply would spin beside it.
    environment = {"OPENBLAS_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run([sys.executable, "-m", module, *arguments], env=environment, check=False).returncode


def plain_environment(folder: Path = FOLDER) -> dict[str, str]:
    """For a child process that runs the sources: compiled classes cannot be sent from process to process."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if folder != Path(path).parent)}


def is_compiled() -> bool:
    """Whether this process runs them."""
    spec = find_spec("headrace_sim.replica")
    return spec is not None and not str(spec.origin).endswith(".py")


def _compile(made: Path) -> None:
    patterns = [f"{package}/{each}.py" for package, modules in _HOT.items() for each in modules]
    hot = [path for pattern in patterns for path in made.glob(pattern)]
    names = sorted(str(path.relative_to(made)) for path in hot if path.name not in _INTERPRETED)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    command = [sys.executable, "-m", "mypyc", "--python-version", python, *names]
    # What is slow lies in objects, not in C: more than -O1 takes three times as long to compile and brings nothing.
    environment = os.environ | {"MYPYC_OPT_LEVEL": "1"}
    done = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        faults = [line for line in lines if " error: " in f" {line}"] or lines[-1:] or ["failed"]
        raise SimulationError(f"--compiled needs mypy, setuptools and a C compiler: {faults[0]}")
    shutil.rmtree(made / "build")
    shutil.rmtree(made / ".mypy_cache", ignore_errors=True)


def _root(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is one of ours"
    return Path(spec.origin).parent


def _digest(roots: Iterable[Path]) -> str:
    digest = sha256(sys.version.encode())
    try:
        digest.update(version("mypy").encode())
    except PackageNotFoundError:
        raise SimulationError("--compiled needs mypy, setuptools and a C compiler: there is no mypy") from None
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _all_but_sources(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not (name.endswith(".py") or (Path(folder) / name).is_dir())}
