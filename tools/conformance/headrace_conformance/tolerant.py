"""Reading JSON of a stranger: what is not there, or of the wrong type, is empty. The schema rules complain about it."""

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """The JSON value, or None if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def an_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def a_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def a_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def a_count(value: Any) -> int | None:
    """A non-negative integer, or None."""
    return value if type(value) is int and value >= 0 else None
