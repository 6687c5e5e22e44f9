"""The one lock: exact, valid everywhere, and covering everything that the distributions bring in."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
