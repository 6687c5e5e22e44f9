"""What changes between two fleet files, one line per value. Knows no section."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.fleet.problems import join

_ABSENT = object()


def changes(old: Fleet | None, new: Fleet) -> list[str]:
    """Lines ``path: old -> new``; what is absent on one side is shown as (none)."""
    before = dict(_flat(asdict(old), "")) if old is not None else {}
    after = dict(_flat(asdict(new), ""))
    lines = []
    for path in sorted(before.keys() | after.keys()):
        left, right = before.get(path, _ABSENT), after.get(path, _ABSENT)
        if left != right:
            lines.append(f"{path}: {_show(left)} -> {_show(right)}")
    return lines


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Leaves by path; an empty mapping or list is a leaf, for its appearance is a change."""
    items: list[tuple[object, object]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, tuple | list):
        items = list(enumerate(value))
    if not items:
        yield path, value
    for key, item in items:
        yield from _flat(item, join(path, key))


def _show(value: object) -> str:
    return "(none)" if value is _ABSENT or value is None or value in ({}, (), []) else str(value)
