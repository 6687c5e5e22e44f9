"""The thinking of models that write `<think>…</think>` before their answer."""

from __future__ import annotations

from enum import Enum, auto

from headrace_gateway.parsing.parts import Part, Reasoning, Text, held_prefix

OPEN, CLOSE = "<think>", "</think>"


class _Place(Enum):
    START = auto()
    THINKING = auto()
    BETWEEN = auto()
    ANSWER = auto()


class ReasoningParser:
    """`inside`: the prompt itself ended with the opening tag. Space around the tags belongs to neither side."""

    def __init__(self, *, inside: bool) -> None:
        self._place = _Place.THINKING if inside else _Place.START
        self._held = ""
        self._begun = False

    called = False

    @property
    def is_plain(self) -> bool:
        return self._place is _Place.ANSWER

    @property
    def may_answer(self) -> bool:
        return self._place in (_Place.START, _Place.ANSWER)

    def feed(self, text: str) -> list[Part]:
        if self._place is _Place.ANSWER:
            return [Text(text)] if text else []
        self._held += text
        parts: list[Part] = []
        if self._place is _Place.START:
            self._start()
        if self._place is _Place.THINKING:
            self._think(parts)
        if self._place is _Place.BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        if self._place is _Place.ANSWER and self._held:
            parts.append(Text(self._held))
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if not held or self._place is _Place.BETWEEN:
            return []
        return [Reasoning(held) if self._place is _Place.THINKING else Text(held)]

    def _start(self) -> None:
        """Only a tag at the very beginning, or behind space, opens."""
        core = self._held.lstrip()
        if core.startswith(OPEN):
            self._held, self._place = core[len(OPEN) :], _Place.THINKING
        elif not OPEN.startswith(core):
            self._place = _Place.ANSWER

    def _think(self, parts: list[Part]) -> None:
        if not self._begun:
            self._held = self._held.lstrip()
            self._begun = bool(self._held)
        thought, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._held, self._place = rest, _Place.BETWEEN
            thought = thought.rstrip()
        else:
            free = thought[: len(thought) - held_prefix(thought, CLOSE)]
            thought = free.rstrip()
            self._held = self._held[len(thought) :]
        if thought:
            parts.append(Reasoning(thought))
