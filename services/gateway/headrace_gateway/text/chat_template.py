"""A model's chat template: messages in, the spans of a prompt out. Jinja in a sandbox, as Hugging Face renders it.

What people write can look like control markers; see `disguise` for why none of it comes out as one. Knows no token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace_gateway.text.card import CardError, ModelCard
from headrace_gateway.text.disguise import Disguise
from headrace_gateway.text.tokenizer import Span
from headrace_kit.errors import HeadraceError

MAX_PROMPT_CHARS = 16 * 1024 * 1024
_FAULTS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


class GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; for a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


class ChatTemplate:
    """The compiled template of a card that can chat. `markers` are the texts of its tokenizer's control tokens."""

    def __init__(self, card: ModelCard, markers: Sequence[str]) -> None:
        assert card.chat_template is not None, "a card without a template cannot chat"
        try:
            self._template = _environment().from_string(card.chat_template)
        except jinja2.TemplateError as error:
            raise CardError("chat_template", f"does not compile: {error}") from None
        self._variables = card.special_tokens
        self._disguise = Disguise(markers)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        now: datetime,
        max_chars: int = MAX_PROMPT_CHARS,
    ) -> list[Span]:
        """The prompt up to the assistant's turn; raises HeadraceError for messages that the template refuses."""
        context = {
            **self._variables,
            "messages": [self._disguise.message(message) for message in messages],
            "tools": self._disguise.value(tools) if tools else None,
            "add_generation_prompt": True,
            "strftime_now": now.strftime,
        }
        parts: list[str] = []
        num_chars = 0
        try:
            for part in self._template.generate(context):
                parts.append(part)
                num_chars += len(part)
                if num_chars > max_chars:
                    raise HeadraceError("too_large", f"the chat template renders more than {max_chars} characters")
        except _FAULTS as error:
            text = self._disguise.restore(str(error))
            raise HeadraceError("invalid_argument", f"the chat template refuses it: {text}", field="messages") from None
        return list(self._disguise.spans("".join(parts)))
