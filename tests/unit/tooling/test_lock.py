"""The one lock: exact, valid everywhere, and covering everything that the distributions bring in."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.integration.clean_environment import SOURCES, closure

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "constraints.txt").read_text()
PINS = {
    str(canonicalize_name(line.partition("==")[0])): line.partition("==")[2]
    for line in LOCK.splitlines()
    if "==" in line
}


def declared(file: Path) -> list[Requirement]:
    project = tomllib.loads(file.read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for text in (*project["dependencies"], *(text for extra in extras for text in extra))]


def test_every_line_is_an_exact_public_version() -> None:
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)]


@pytest.mark.parametrize("name", SOURCES)
def test_everything_that_comes_with_a_distribution_is_pinned(name: str) -> None:
    extras = frozenset({"engine"}) if name == "headrace-worker" else frozenset[str]()
    assert not set(closure(name, extras)) - set(PINS) - set(SOURCES)


@pytest.mark.parametrize("source", SOURCES.values())
def test_every_floor_is_at_or_below_its_pin(source: str) -> None:
    for requirement in declared(ROOT / source / "pyproject.toml"):
        name: str = canonicalize_name(requirement.name)
        assert requirement.specifier, f"{requirement} has no floor"
        assert name in SOURCES or requirement.specifier.contains(PINS[name]), f"{requirement} is pinned to {PINS[name]}"


def test_what_tests_and_tools_need_is_pinned() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    needed = {canonicalize_name(Requirement(text).name) for group in groups.values() for text in group}
    assert not needed - set(PINS)


def test_stubs_are_generated_by_the_pinned_generator() -> None:
    build = tomllib.loads((ROOT / "protos/pyproject.toml").read_text())["build-system"]["requires"]
    assert f"grpcio-tools=={PINS['grpcio-tools']}" in build
    assert distribution("grpcio-tools").version == PINS["grpcio-tools"]


@pytest.mark.slow
def test_what_a_gpu_needs_resolves_under_the_lock_and_is_in_it(tmp_path: Path) -> None:
    """Nothing is installed: an index is asked. A CPU torch leaves out what the CUDA lines of the lock are for."""
    project = tomllib.loads((ROOT / SOURCES["headrace-worker"] / "pyproject.toml").read_text())["project"]
    wanted = [*project["optional-dependencies"]["gpu"], *project["optional-dependencies"]["gpu-metrics"], "torch"]
    words = ["--dry-run", "--ignore-installed", "-q", "--report", str(tmp_path / "found.json")]
    command = [sys.executable, "-m", "pip", "install", *words, "-c", str(ROOT / "constraints.txt"), *wanted]
    subprocess.run(command, check=True, timeout=600)
    found = [each["metadata"] for each in json.loads((tmp_path / "found.json").read_text())["install"]]
    assert {"flash-attn-4", "triton", "torch"} <= {each["name"] for each in found}
    other = {each["name"]: each["version"] for each in found if not _is_pinned(each["name"], each["version"])}
    assert not other


def _is_pinned(name: str, version: str) -> bool:
    pinned = PINS.get(str(canonicalize_name(name)))
    return pinned is not None and Version(pinned) == Version(Version(version).public)
