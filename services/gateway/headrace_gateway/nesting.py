"""How deep JSON from outside may nest. Pure; knows no field.

Python's own limit depends on how deep its stack is at the moment, so what one step can read the next may not: the
bound here lies far below that.
"""

from typing import Any

MAX_NESTING = 128


def nests_too_deep(text: str, value: Any) -> bool:
    """Whether `value`, read from `text`, has more than MAX_NESTING arrays and objects inside one another."""
    if text.count("{") + text.count("[") <= MAX_NESTING:
        return False
    level = [value]
    for _ in range(MAX_NESTING + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True
