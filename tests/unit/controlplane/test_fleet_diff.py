"""Differences of fleet files: one line per value."""

from headrace_controlplane.fleet.diff import changes
from headrace_controlplane.fleet.file import parse
from tests.unit.controlplane.fakes import SCRIPTED, scripted


def test_equal_files_differ_in_nothing() -> None:
    assert changes(parse(SCRIPTED), parse(scripted(min=1))) == []


def test_a_changed_value_is_one_line() -> None:
    assert changes(parse(SCRIPTED), parse(scripted(min=3))) == ["pools.scripted.min: 1 -> 3"]


def test_what_appears_and_what_goes_is_shown() -> None:
    old, new = parse(SCRIPTED + "tenants: {a: {}}"), parse(SCRIPTED + "tenants: {b: {weight: 2}}")
    lines = changes(old, new)
    assert "tenants.a.weight: 1.0 -> (none)" in lines
    assert "tenants.b.weight: (none) -> 2.0" in lines


def test_against_nothing_everything_is_new() -> None:
    assert "models.scripted.source: (none) -> scripted" in changes(None, parse(SCRIPTED))


def test_what_appears_without_a_value_is_no_change() -> None:
    lines = changes(parse(SCRIPTED), parse(SCRIPTED + "tenants: {a: {}}"))
    assert "tenants.a.weight: (none) -> 1.0" in lines
    sides = [line.partition(": ")[2].split(" -> ") for line in lines]
    assert lines and not [side for side in sides if side[0] == side[1] or set(side) <= {"(none)", "(empty)"}]
