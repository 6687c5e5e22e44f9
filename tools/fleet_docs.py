"""Writes docs/fleet.md from the schema of fleet.yaml: ``python tools/fleet_docs.py``. Knows no section by name."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace_controlplane.fleet.file import Fleet, default_text
from headrace_controlplane.fleet.schema import NAME, expectation

PATH = Path(__file__).parents[1] / "docs" / "fleet.md"
_HEAD = """\
# fleet.yaml

What should exist: models, pools of replicas, SLO classes, tenants, prices, safety rules. `headrace fleet apply FILE`
checks the whole file, reports every problem with its path, and either puts all of it in force or changes nothing.
API keys are not in it: `headrace keys` makes them, and neither apply nor rollback touches them.

This page is generated from the schema by `python tools/fleet_docs.py`; a test fails when it is old.
Unknown keys and keys given twice are refused; so are anchors, aliases and nesting without end.

The default fleet:

```yaml
{default}```

"""


def text() -> str:
    """The whole page."""
    parts = [_HEAD.format(default=default_text())]
    hints = typing.get_type_hints(Fleet)
    for field in dataclasses.fields(Fleet):
        kind, is_named = _record(hints[field.name])
        shape = f"`{field.name}.NAME`" if is_named else f"`{field.name}`"
        parts.append(f"## {field.name}\n\n{_sentence(field.metadata['help'])} {_doc(kind)}\n\n")
        if is_named:
            parts.append(f"Names match `{_names(kind)}`.\n\n")
        parts += _tables(kind, shape)
    return "".join(parts).rstrip() + "\n"


def _tables(kind: type, shape: str) -> Iterator[str]:
    """The table of one record, then those of the records inside it."""
    yield f"| key of {shape} | value | default | meaning |\n|---|---|---|---|\n"
    hints, inner = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        record, is_named = _record(hints[field.name])
        if record is not None:
            inner.append((record, f"{shape.strip('`')}.{field.name}" + (".NAME" if is_named else "")))
        row = (f"`{field.name}`", _value(hints[field.name], field), _default(field), field.metadata["help"])
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"
    yield "\n"
    for record, path in inner:
        yield f"{_doc(record)}\n\n"
        yield from _tables(record, f"`{path}`")


def _record(hint: Any) -> tuple[Any, bool]:
    """The dataclass inside a type, and whether it is reached by name; (None, False) if there is none."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    args = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return args[1], True
    if typing.get_origin(hint) is tuple:
        hint = args[0]
    return (hint, False) if dataclasses.is_dataclass(hint) else (None, False)


def _value(hint: Any, field: "dataclasses.Field[Any]") -> str:
    record, is_named = _record(hint)
    if is_named:
        return "a mapping from names"
    if record is not None:
        return "a list of mappings" if typing.get_origin(hint) is tuple else "a mapping"
    return expectation(hint, field.metadata).replace("matching ", "matching `") + ("`" * ("pattern" in field.metadata))


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None or value in ((), {}, ""):
        return "nothing"
    if dataclasses.is_dataclass(value) or isinstance(value, dict):
        return "see below"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _names(kind: Any) -> str:
    return str(getattr(kind, "NAMES", NAME.pattern))


def _doc(kind: Any) -> str:
    return " ".join((kind.__doc__ or "").split()).replace("``", "`")


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text(), "utf-8")
