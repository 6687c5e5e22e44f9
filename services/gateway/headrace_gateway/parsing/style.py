"""How a model writes calls and thinking, read from its card: the chat template shows what the model was taught."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

from headrace_gateway.parsing.hermes import HermesParser
from headrace_gateway.parsing.llama3 import Llama3Parser
from headrace_gateway.parsing.parts import Part, Text, TextParser, merged
from headrace_gateway.parsing.reasoning import ReasoningParser


@dataclass(frozen=True, slots=True)
class Style:
    """`calls` is "" for a model that was taught none; `thinks` if it may write `<think>` before its answer."""

    calls: Literal["", "hermes", "llama3"]
    thinks: bool

    def parser(self, tool_names: Set[str], *, inside_thought: bool) -> TextParser | None:
        """A parser for one choice of a request with these tools; None if its text is only text."""
        calls: TextParser | None = None
        if tool_names and self.calls:
            calls = HermesParser() if self.calls == "hermes" else Llama3Parser(tool_names)
        if not self.thinks:
            return calls
        thinking = ReasoningParser(inside=inside_thought)
        return thinking if calls is None else _Both(thinking, calls)


SCRIPTED_STYLE = Style("hermes", thinks=True)
"""The scripted engine can write either, for those who develop a client."""


def read_style(template: str | None) -> Style:
    """The style of a chat template."""
    text = template or ""
    thinks = "<think>" in text or "</think>" in text
    if "tools" not in text:
        return Style("", thinks)
    if "<tool_call>" in text:
        return Style("hermes", thinks)
    return Style("llama3" if "<|python_tag|>" in text or '"parameters"' in text else "", thinks)


class _Both:
    """Thinking first; what is left of the text may hold calls."""

    def __init__(self, thinking: ReasoningParser, calls: TextParser) -> None:
        self._thinking, self._calls = thinking, calls

    @property
    def is_plain(self) -> bool:
        return self._thinking.is_plain and self._calls.is_plain

    @property
    def may_answer(self) -> bool:
        return self._thinking.may_answer and self._calls.may_answer

    @property
    def called(self) -> bool:
        return self._calls.called

    def feed(self, text: str) -> list[Part]:
        return self._on(self._thinking.feed(text))

    def finish(self) -> list[Part]:
        return merged(self._on(self._thinking.finish()) + self._calls.finish())

    def _on(self, parts: list[Part]) -> list[Part]:
        through: list[Part] = []
        for part in parts:
            through += self._calls.feed(part.text) if isinstance(part, Text) else [part]
        return merged(through)
