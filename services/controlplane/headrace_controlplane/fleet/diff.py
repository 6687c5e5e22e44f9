"""What changes between two fleet files, one line per value. Knows no section."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.fleet.problems import join


def changes(old: Fleet | None, new: Fleet) -> list[str]:
    """Lines ``path: old -> new``. What is absent on one side is shown as (none), and is no change from nothing."""
    before = dict(_flat(asdict(old), "")) if old is not None else {}
    after = dict(_flat(asdict(new), ""))
    lines = []
    for path in sorted(before.keys() | after.keys()):
        left, right = before.get(path), after.get(path)
        is_both = path in before and path in after
        if left != right and (is_both or not _is_nothing(left) or not _is_nothing(right)):
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


def _is_nothing(value: object) -> bool:
    return value is None or value in ("", {}, (), [])


def _show(value: object) -> str:
    return "(none)" if value is None else "(empty)" if _is_nothing(value) else str(value)
