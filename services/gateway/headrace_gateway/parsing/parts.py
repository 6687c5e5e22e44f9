"""What a piece of a model's text stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Answer text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of function call number `index` of the choice: first its name (`arguments` is empty), then arguments."""

    index: int
    name: str
    arguments: str


Part = Text | Reasoning | CallPart


class TextParser(Protocol):
    """Splits the text of one choice, however it is cut. What it holds back is out by the end of `finish`."""

    def feed(self, text: str) -> list[Part]: ...
    def finish(self) -> list[Part]: ...

    @property
    def is_plain(self) -> bool:
        """Whether nothing is held and everything that may still come is answer text."""
        ...

    @property
    def may_answer(self) -> bool:
        """Whether what is held may still turn out to be answer text."""
        ...

    @property
    def called(self) -> bool:
        """Whether the text made at least one call and every call that it began is whole."""
        ...


def merged(parts: list[Part]) -> list[Part]:
    """The same parts with neighbours of one kind joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, CallPart) and isinstance(last, CallPart) and not part.name and not last.name:
            joined[-1] = CallPart(part.index, "", last.arguments + part.arguments)
        else:
            joined.append(part)
    return joined


def held_prefix(text: str, tag: str) -> int:
    """Length of the longest end of `text` that begins `tag` without being it."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0
