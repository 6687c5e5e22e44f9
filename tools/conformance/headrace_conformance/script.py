"""Scripts for a model that plays what it is told: the last user message is a JSON array, one element per token.

A string is a token with that text, a list of byte values a token with those bytes, an integer a token id; strings
such as ``!err`` are directives. The model ``scripted`` of Headrace is one; for others these rules do not apply.
"""

import json
from collections.abc import Iterator, Sequence

Element = str | int | list[int]
ERROR = "!err"
END_TURN = 259  # ends a choice, counted and never visible


def script(*elements: Element) -> str:
    return json.dumps(list(elements))


def rate(tokens_per_s: int) -> str:
    return f"!rate({tokens_per_s})"


def stall(seconds: float) -> str:
    return f"!stall({seconds:g})"


def repeat(count: int, piece: str) -> str:
    return f"!repeat({count},{piece})"


def num_tokens(elements: Sequence[Element]) -> int:
    """Generated tokens of a script without directives: one per element and the end."""
    return len(elements) + 1


def splits(data: bytes) -> Iterator[list[list[int]]]:
    """Every way to cut bytes in two tokens, then one token per byte."""
    for at in range(1, len(data)):
        yield [list(data[:at]), list(data[at:])]
    yield [[one] for one in data]
