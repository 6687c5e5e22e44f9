"""A session's events as its client sees them: where a model writes calls or thinking, its text is split into channels.

The machine below knows text only. Where nothing is to be split its events pass as they are; elsewhere they are numbered
anew, for a part of a tag makes no event and one text may make several.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headrace_gateway.lifecycle import outputs
from headrace_gateway.parsing.parts import CallPart, Part, Reasoning, Text, TextParser
from headrace_gateway.session import ClientEvent, Session


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one call. `call_id` and `name` are only in its first piece."""

    index: int
    call_id: str
    name: str
    arguments: str


class ParsedDelta(NamedTuple):
    """A delta in exactly one channel: text, reasoning or a call."""

    sequence_number: int
    choice: int
    text: str
    num_tokens: int
    logprobs: tuple[object, ...]
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


ParsedEvent = ClientEvent | ParsedDelta
Batches = AsyncIterator[Sequence[ParsedEvent]]
"""What is there together at a time, possibly nothing; `Created` comes alone."""


class ParsedStream:
    """One session's events; `num_reasoning_tokens` grows with them. One consumer iterates `batches`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.num_reasoning_tokens = 0
        self._number = 0
        prepared = session.prepared
        parsers = [prepared.parser() for _ in range(prepared.bounds.n)]
        self._choices = [_Choice(parser) for parser in parsers if parser is not None]
        self._is_plain = not self._choices  # nothing is to be split, now and for good

    async def batches(self) -> Batches:
        """Everything the client sees, in order, ending with the one terminal; together what is there already."""
        session = self._session
        session.begin()
        while not session.is_over:
            await session.ready()
            yield self._parse(session.take())

    def _parse(self, batch: Sequence[ClientEvent]) -> Sequence[ParsedEvent]:
        if self._is_plain and batch[0].sequence_number == self._number:
            self._number += len(batch)
            return batch
        parsed: list[ParsedEvent] = []
        for event in batch:
            match event:
                case outputs.Delta():
                    parsed += self._split(event)
                case outputs.ChoiceFinished():
                    choice = self._choices[event.choice]
                    parsed += self._deltas(event.choice, choice.finish())
                    parsed.append(replace(event, sequence_number=self._next(), reason=choice.reason(event.reason)))
                case _:
                    parsed.append(replace(event, sequence_number=self._next()))
        self._is_plain = all(choice.is_plain for choice in self._choices)
        return parsed

    def _split(self, event: outputs.Delta) -> Sequence[ParsedEvent]:
        choice = self._choices[event.choice]
        if choice.is_plain:
            return (event._replace(sequence_number=self._next()),)
        choice.num_tokens += event.num_tokens
        choice.logprobs += event.logprobs
        parts = choice.parser.feed(event.text)
        if not parts and not choice.parser.may_answer:
            choice.logprobs = ()  # a tag's tokens are no part of the answer
        return self._deltas(event.choice, parts)

    def _deltas(self, index: int, parts: list[Part]) -> list[ParsedDelta]:
        """The last part of a text completes its tokens. Log-probabilities are told for answer text."""
        choice = self._choices[index]
        deltas = []
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            num_tokens, logprobs = choice.take() if is_last else (0, ())
            if isinstance(part, Reasoning):
                self.num_reasoning_tokens += num_tokens
            deltas.append(self._delta(index, part, num_tokens, logprobs))
        return deltas

    def _delta(self, index: int, part: Part, num_tokens: int, logprobs: tuple[object, ...]) -> ParsedDelta:
        number = self._next()
        match part:
            case Text():
                return ParsedDelta(number, index, part.text, num_tokens, logprobs)
            case Reasoning():
                return ParsedDelta(number, index, "", num_tokens, (), reasoning=part.text)
            case CallPart():
                call = self._choices[index].call(part)
                return ParsedDelta(number, index, "", num_tokens, (), tool_call=call)

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number


class _Choice:
    """One choice's parser, and the tokens whose text it still holds."""

    def __init__(self, parser: TextParser) -> None:
        self.parser = parser
        self.num_tokens = 0
        self.logprobs: tuple[object, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether all that is still to come is as it is. It stays so."""
        return self.parser.is_plain and not self.parser.called and not self.num_tokens

    def finish(self) -> list[Part]:
        return self.parser.finish()

    def take(self) -> tuple[int, tuple[object, ...]]:
        taken = (self.num_tokens, self.logprobs)
        self.num_tokens, self.logprobs = 0, ()
        return taken

    def reason(self, reason: str) -> str:
        """A choice that ended by itself ended with calls if it made some and all of them are whole."""
        return "tool_calls" if reason == "stop" and self.parser.called else reason

    @staticmethod
    def call(part: CallPart) -> ToolCallDelta:
        call_id = f"call_{secrets.token_hex(12)}" if part.name else ""
        return ToolCallDelta(part.index, call_id, part.name, part.arguments)
