"""What every detector is to the screener. Offsets count code points of the whole text."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Window:
    """The part of a text that is still needed: ``text[0]`` is code point ``base``; ``final`` = no more follows."""

    text: str
    base: int
    final: bool

    @property
    def end(self) -> int:
        return self.base + len(self.text)


@dataclass(frozen=True)
class Scan:
    """What one look found.

    ``matches`` are new, (start, end), and cannot change however the text goes on. ``clear_to``: every match that begins
    before it has been reported, by this scan or an earlier one; text from there on may still become part of one.
    """

    matches: list[tuple[int, int]]
    clear_to: int


class Cursor(Protocol):
    """One detector's way through one text. The window begins at least one code point before the last ``clear_to``."""

    def scan(self, window: Window) -> Scan: ...


class Detector(Protocol):
    """Compiled once, shared by all texts. Its findings depend on the text alone, not on how it is cut into windows."""

    def open(self) -> Cursor: ...
