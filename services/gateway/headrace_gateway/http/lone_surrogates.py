"""Half characters: JSON can escape one half of a surrogate pair alone, and nothing that is UTF-8 can carry it. Pure."""

import re
from typing import Any

_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE = re.compile("[\ud800-\udfff]")


def place_of_lone_surrogate(text: str, value: Any) -> str | None:
    """Path of the first string with one, or of the object that has one in a name; None if there is none.

    `value` was read from `text`, which was UTF-8, and nests no deeper than MAX_NESTING. A whole pair was joined by the
    reading.
    """
    if _ESCAPE.search(text) is None:
        return None
    found = _find(value)
    return None if found is None else "".join(reversed(found)).removeprefix(".")


def _find(value: Any) -> list[str] | None:
    """The steps to it, the last first."""
    if isinstance(value, str):
        return None if _LONE.search(value) is None else []
    if isinstance(value, dict):
        if any(_LONE.search(name) for name in value):
            return []
        inner = ((f".{name[:80]}", item) for name, item in value.items())
    elif isinstance(value, list):
        inner = ((f"[{at}]", item) for at, item in enumerate(value))
    else:
        return None
    for step, item in inner:
        if (found := _find(item)) is not None:
            return [*found, step]
    return None
