"""Typed reading of a JSON object: null is absent, types are strict, and every complaint names the field."""

import sys
from collections.abc import Mapping
from typing import Any

from headrace_kit.errors import HeadraceError

_MAX_NAME = 80
_INT64 = range(-(2**63), 2**63)


def invalid(field: str, message: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{field}: {message}", field=field)


class Fields:
    """One JSON object. `path` is where it stands in the body, for messages."""

    def __init__(self, content: Mapping[str, Any], path: str = "") -> None:
        self.content, self.path = content, path

    def where(self, name: str) -> str:
        """The path of a field; a name that a client made up is cut."""
        return f"{self.path}.{name[:_MAX_NAME]}" if self.path else name

    def names(self) -> set[str]:
        """Names with a value."""
        return {name for name, value in self.content.items() if value is not None}

    def raw(self, name: str) -> Any:
        return self.content.get(name)

    def text(self, name: str) -> str | None:
        value = self.content.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(self.where(name), "expected a string")
        return value

    def boolean(self, name: str) -> bool | None:
        value = self.content.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(self.where(name), "expected true or false")
        return value

    def integer(self, name: str) -> int | None:
        value = self.content.get(name)
        if value is not None and (type(value) is not int or value not in _INT64):
            raise invalid(self.where(name), "expected an integer")
        return value

    def number(self, name: str) -> float | None:
        value = self.content.get(name)
        if value is None:
            return None
        # Compared, not converted: JSON has integers that no float can hold.
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            raise invalid(self.where(name), "expected a finite number")
        return float(value)

    def items(self, name: str) -> list[Any] | None:
        value = self.content.get(name)
        if value is not None and not isinstance(value, list):
            raise invalid(self.where(name), "expected an array")
        return value

    def object(self, name: str) -> "Fields | None":
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise invalid(self.where(name), "expected an object")
        return Fields(value, self.where(name))
