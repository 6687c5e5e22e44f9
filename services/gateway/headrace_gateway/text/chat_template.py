"""A model's chat template: messages in, the spans of a prompt out. Jinja in a sandbox, as Hugging Face renders it.

What people write can look like control markers. Every such look-alike in messages and tools is replaced by an
unguessable placeholder before the template sees it and put back afterwards as plain text, so whatever the template does
to the text, only markers that the template itself wrote come out as markers. Knows no token ids.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace_gateway.text.card import CardError
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
    """A compiled template. `markers` are the texts of control tokens; `variables` are bos_token and its like."""

    def __init__(self, source: str, markers: Sequence[str], variables: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise CardError("chat_template", f"does not compile: {error}") from None
        self._variables = dict(variables)
        self._markers = sorted(markers, key=len, reverse=True)
        self._place = {marker: number for number, marker in enumerate(self._markers)}
        # Digits survive whatever a template does to text: case, trimming, JSON.
        self._nonce = f"{secrets.randbelow(10**30):030d}"
        self._look_alike = re.compile("|".join(re.escape(marker) for marker in self._markers) or r"(?!)")
        self._written = re.compile(f"({self._look_alike.pattern})|{self._nonce}([0-9]{{6}})")

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
            "messages": self._disguise(messages),
            "tools": self._disguise(tools) if tools else None,
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
            text = self._restore(str(error))
            raise HeadraceError("invalid_argument", f"the chat template refuses it: {text}", field="messages") from None
        return list(self._spans("".join(parts)))

    def _disguise(self, value: Any) -> Any:
        """The same data with look-alikes replaced, in keys too."""
        if isinstance(value, str):
            return self._look_alike.sub(lambda found: f"{self._nonce}{self._place[found.group()]:06d}", value)
        if isinstance(value, Mapping):
            return {self._disguise(key): self._disguise(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._disguise(item) for item in value]
        return value

    def _restore(self, text: str) -> str:
        return re.sub(f"{self._nonce}([0-9]{{6}})", lambda found: self._markers[int(found.group(1))], text)

    def _spans(self, text: str) -> Iterator[Span]:
        """Markers that the template wrote, and the texts between them with look-alikes put back."""
        plain: list[str] = []
        position = 0
        for found in self._written.finditer(text):
            plain.append(text[position : found.start()])
            position = found.end()
            if found.group(1) is None:
                plain.append(self._markers[int(found.group(2))])
                continue
            yield from _text_span(plain)
            plain = []
            yield Span(found.group(1), True)
        plain.append(text[position:])
        yield from _text_span(plain)


def _text_span(plain: Sequence[str]) -> Iterator[Span]:
    text = "".join(plain)
    if text:
        yield Span(text, False)
