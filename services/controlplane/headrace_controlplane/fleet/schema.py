"""Reads plain mappings into frozen dataclasses: types and bounds come from the fields. Knows no section and no YAML.

A field is declared with ``setting``; its type is one of str, int, float, bool, a Literal, a dataclass, a tuple of
one of them, a mapping from names to dataclasses, or ``X | None``. A dataclass may have ``check(path)``, which yields
what no single field can say.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from headrace_controlplane.fleet.problems import Problem, join

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,126}")
_WORDS: dict[type, str] = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


class _Invalid(Exception):
    """The value was reported; its owner cannot be built."""


def setting(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    multiple_of: int | None = None,
    pattern: str | None = None,
) -> Any:
    """A field of a section; ``...`` as default makes it required. Bounds are inclusive."""
    bounds = {"minimum": minimum, "maximum": maximum, "multiple_of": multiple_of, "pattern": pattern}
    metadata = {"help": meaning, **{name: bound for name, bound in bounds.items() if bound is not None}}
    if default is ...:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(kind: type[T], value: object, path: str, problems: list[Problem]) -> T | None:
    """``value`` as ``kind``; what is wrong is appended to ``problems`` and the result is None."""
    try:
        return typing.cast(T, _Reader(problems).record(kind, value, path))
    except _Invalid:
        return None


def expectation(hint: Any, bounds: Mapping[str, Any]) -> str:
    """What a value must be, in words: ``an integer >= 0``."""
    inner, optional = _strip_none(hint)
    if typing.get_origin(inner) is Literal:
        text = "one of " + ", ".join(map(str, typing.get_args(inner)))
    elif typing.get_origin(inner) is tuple:
        text = "a list of " + expectation(typing.get_args(inner)[0], {}).removeprefix("a ").removeprefix("an ")
    else:
        text = _WORDS.get(inner, "a mapping")
    if "pattern" in bounds:
        text += f" matching {bounds['pattern']}"
    if "multiple_of" in bounds:
        text += f", a multiple of {bounds['multiple_of']},"
    limits = [f"{sign} {bounds[name]}" for name, sign in (("minimum", ">="), ("maximum", "<=")) if name in bounds]
    text = " ".join([text, " and ".join(limits)]).strip().rstrip(",")
    return f"{text} or nothing" if optional else text


class _Reader:
    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def record(self, kind: Any, value: object, path: str) -> Any:
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            self._refuse(path, f"expected a mapping, got {_show(value)}")
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints, values, failed = typing.get_type_hints(kind), {}, False
        for key in value:
            if key not in fields:
                failed = self._note(join(path, key), f"unknown key; known are {', '.join(fields)}")
        for name, field in fields.items():
            if name not in value:
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                    expected = expectation(hints[name], field.metadata)
                    failed = self._note(join(path, name), f"is missing; expected {expected}")
                continue
            try:
                values[name] = self._value(hints[name], field.metadata, value[name], join(path, name))
            except _Invalid:
                failed = True
        if failed:
            raise _Invalid
        return self._checked(kind(**values), path)

    def _value(self, hint: Any, bounds: Mapping[str, Any], value: object, path: str) -> Any:
        inner, optional = _strip_none(hint)
        if value is None and optional:
            return None
        origin = typing.get_origin(inner)
        if origin is tuple:
            return self._sequence(typing.get_args(inner)[0], value, path)
        if origin is not None and origin is not Literal:
            return self._named(typing.get_args(inner)[1], value, path)
        if dataclasses.is_dataclass(inner):
            return self.record(inner, value, path)
        parsed = _scalar(inner, value)
        if parsed is None or not _within(parsed, bounds):
            telling = bounds if _above(parsed, bounds) else {k: v for k, v in bounds.items() if k != "maximum"}
            self._refuse(path, f"expected {expectation(hint, telling)}, got {_show(value)}")
        return parsed

    def _sequence(self, item: Any, value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            self._refuse(path, f"expected {expectation(tuple[item, ...], {})}, got {_show(value)}")
        return tuple(
            self._each([(join(path, i), lambda p, v=v: self._value(item, {}, v, p)) for i, v in enumerate(value)])
        )

    def _named(self, kind: Any, value: object, path: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self._refuse(path, f"expected a mapping from names, got {_show(value)}")
        return dict(
            self._each(
                [(join(path, key), lambda p, k=key, v=item: self._entry(kind, k, v, p)) for key, item in value.items()]
            )
        )

    def _entry(self, kind: Any, key: object, value: object, path: str) -> tuple[str, Any]:
        allowed = re.compile(getattr(kind, "NAMES", NAME))
        if not isinstance(key, str) or not allowed.fullmatch(key):
            self._refuse(path, f"expected a name matching {allowed.pattern}, got {_show(key)}")
        return key, self.record(kind, value, path)

    def _each(self, items: list[tuple[str, Callable[..., Any]]]) -> Iterator[Any]:
        """Every item is read before the first failure counts, so that all problems are reported."""
        results, failed = [], False
        for path, parse in items:
            try:
                results.append(parse(path))
            except _Invalid:
                failed = True
        if failed:
            raise _Invalid
        return iter(results)

    def _checked(self, record: Any, path: str) -> Any:
        found = list(record.check(path)) if hasattr(record, "check") else []
        self._problems += found
        if found:
            raise _Invalid
        return record

    def _note(self, path: str, message: str) -> bool:
        self._problems.append(Problem(path, message))
        return True

    def _refuse(self, path: str, message: str) -> typing.NoReturn:
        self._note(path, message)
        raise _Invalid


def _strip_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
        assert len(inner) == 1, "only X | None is a supported union"
        return inner[0], True
    return hint, False


def _scalar(kind: Any, value: object) -> Any:
    """``value`` if it has the type, else None. A boolean is no number, and YAML's .nan and .inf are none either."""
    if typing.get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in typing.get_args(kind) else None
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        return float(typing.cast(float, value)) if is_number else None
    return value if type(value) is kind else None


def _above(value: Any, bounds: Mapping[str, Any]) -> bool:
    return isinstance(value, int | float) and value > bounds.get("maximum", math.inf)


def _within(value: Any, bounds: Mapping[str, Any]) -> bool:
    if "pattern" in bounds and not re.fullmatch(bounds["pattern"], value):
        return False
    low, high = bounds.get("minimum", -math.inf), bounds.get("maximum", math.inf)
    if isinstance(value, int | float) and not low <= value <= high:
        return False
    return "multiple_of" not in bounds or value % bounds["multiple_of"] == 0


def _show(value: object) -> str:
    if isinstance(value, str):
        return f'"{value[:60]}"' + ("" if len(value) <= 60 else "...")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list) else str(value)[:60]
