"""Every comparison of policies has its command, and a committed report that names it."""

from importlib import import_module
from pathlib import Path

import pytest

from headrace_sim.experiments.__main__ import NAMES

REPORTS = Path(__file__).parents[3] / "docs" / "experiments"


@pytest.mark.parametrize("name", NAMES)
def test_a_comparison_has_a_command_and_a_report_with_a_table(name: str) -> None:
    assert callable(import_module(f"headrace_sim.experiments.{name.replace('-', '_')}").report)
    text = (REPORTS / f"{name}.md").read_text()
    assert f"python -m headrace_sim.experiments {name}" in text
    assert "|---|" in text
    drawings = [line.partition("](")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert all((REPORTS / drawing).read_text().startswith("<svg") for drawing in drawings)
