"""A model that plays scripts: tokens with the delay before each, and how it ended. No text, no wire."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

ENDS = (257, 259)
_DIRECTIVE = re.compile(r"!(\w+)(?:\((.*)\))?")


@dataclass
class Play:
    """``tokens[i]`` is (seconds before it, its bytes); invisible tokens have none."""

    tokens: list[tuple[float, bytes]] = field(default_factory=list)
    reason: str = "stop"
    limit: int = 0
    failed: bool = False

    def add(self, count: int, piece: bytes, pace_s: float, wait_s: float) -> None:
        """Tokens at a pace, the first after a wait; those over the limit are not made."""
        room = self.limit - len(self.tokens)
        self.reason = "length" if count > room else self.reason
        for index in range(min(count, room)):
            self.tokens.append((pace_s + (0.0 if index else wait_s), piece))


def play(prompt: str, max_tokens: int) -> Play:
    result, pace_s, wait_s = Play(limit=max_tokens), 0.0, 0.0
    for element in _elements(prompt):
        directive = _DIRECTIVE.fullmatch(element) if isinstance(element, str) else None
        name, argument = directive.groups() if directive else ("", "")
        if name == "err":
            result.failed = True
            return result
        if name == "rate":
            pace_s = 1 / float(argument)
        elif name == "stall":
            wait_s += float(argument)
        else:
            count, piece = _repeated(name, argument, element)
            result.add(count, piece, pace_s, wait_s)
            wait_s = 0.0
        if element in ENDS or result.reason == "length":
            return result
    return result


def _elements(prompt: str) -> list[Any]:
    try:
        script = json.loads(prompt)
    except ValueError:
        script = list(prompt)
    return [*(script if isinstance(script, list) else prompt), ENDS[0]]


def _repeated(name: str, argument: str, element: Any) -> tuple[int, bytes]:
    if name == "repeat":
        count, _, piece = argument.partition(",")
        return int(count), piece.encode()
    if isinstance(element, int):
        return 1, bytes([element]) if element < 256 else b""
    return 1, bytes(element) if isinstance(element, list) else element.encode()
