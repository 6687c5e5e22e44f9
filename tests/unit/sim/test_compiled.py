"""The compiled modules are the same modules: a run of theirs is the same to the last digit."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from headrace_sim import compiled
from headrace_sim.errors import SimulationError
from tests.unit.sim.test_command import FLEET, LOAD


def test_a_changed_source_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    before = compiled._digest([tmp_path])
    assert before == compiled._digest([tmp_path])
    (tmp_path / "one.py").write_text("x = 2\n")
    assert before != compiled._digest([tmp_path])


def test_this_process_runs_the_sources() -> None:
    assert not compiled.is_compiled()


def test_who_inherits_from_a_compiled_class_is_compiled_too() -> None:
    """Else the class cannot be used: mypyc refuses interpreted subclasses when one is made."""
    hot = set()
    for package, patterns in compiled._HOT.items():
        root = compiled._root(package)
        paths = [path.relative_to(root) for pattern in patterns for path in root.glob(f"{pattern}.py")]
        hot |= {".".join((package, *path.with_suffix("").parts)) for path in paths}
    for path in compiled._root("headrace_sim").glob("*.py"):
        if path.name in compiled._INTERPRETED:
            continue
        module = import_module(f"headrace_sim.{path.stem}")
        classes = [
            each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__
        ]
        if any(base.__module__ in hot for each in classes for base in each.__mro__[1:]):
            assert module.__name__ in hot


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SimulationError, match=r"--compiled: .* cannot be written to"):
        compiled.compiled_path(tmp_path / "file" / "compiled")


@pytest.mark.slow
def test_a_compiled_run_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    (tmp_path / "load.yaml").write_text(yaml.safe_dump(LOAD))
    words = ["-m", "headrace_sim", str(tmp_path / "load.yaml"), "--fleet", str(tmp_path / "fleet.yaml"), "--json"]
    path = str(compiled.compiled_path(tmp_path))
    asked = [sys.executable, "-c", "from headrace_sim.compiled import is_compiled; print(is_compiled())"]
    environment = os.environ | {"PYTHONPATH": path}
    assert subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout == "True\n"
    found = []
    for env in (dict(os.environ), environment):
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]
