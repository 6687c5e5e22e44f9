"""The style of each model in use, found once per card. Knows no request."""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime
from weakref import WeakKeyDictionary

from headrace_gateway.parsing.parts import TextParser
from headrace_gateway.parsing.reasoning import OPEN
from headrace_gateway.parsing.style import SCRIPTED_STYLE, Style, read_style
from headrace_gateway.text.card import SCRIPTED
from headrace_gateway.text.prompt import PromptEncoder
from headrace_kit.errors import HeadraceError

_known: WeakKeyDictionary[PromptEncoder, ModelStyle] = WeakKeyDictionary()


class ModelStyle:
    """`inside_thought`: the template's own prompt ends with the opening tag of thinking."""

    def __init__(self, style: Style, inside_thought: bool) -> None:
        self.style, self.inside_thought = style, inside_thought

    @property
    def takes_tools(self) -> bool:
        return bool(self.style.calls)

    def parser(self, tool_names: Set[str]) -> TextParser | None:
        """A fresh parser for one choice of a chat request."""
        return self.style.parser(tool_names, inside_thought=self.inside_thought)


def style_of(encoder: PromptEncoder) -> ModelStyle:
    found = _known.get(encoder)
    if found is None:
        card = encoder.card
        style = SCRIPTED_STYLE if card.kind == SCRIPTED else read_style(card.chat_template)
        found = _known[encoder] = ModelStyle(style, style.thinks and _ends_in_thought(encoder))
    return found


def _ends_in_thought(encoder: PromptEncoder) -> bool:
    try:
        ids = encoder.chat([{"role": "user", "content": "?"}], None, datetime.now())
    except HeadraceError:  # a template that refuses this says nothing about thinking
        return False
    return encoder.tokenizer.decode(ids).rstrip().endswith(OPEN)
