"""The language of the scripted engine: a prompt becomes operations, a cursor walks them. Knows no plans, no clock.

The byte tokenizer: ids 0-255 are bytes; 256 <bos>, 257 <eos>, 258 <|im_start|>, 259 <|im_end|>. A chat is bos, then
`258 role \\n content 259 \\n` per message, then `258 assistant \\n`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
VOCAB_SIZE = 260
END_TOKEN_IDS = frozenset({EOS, IM_END})
_MAX_ID = 2**32 - 1

_SECONDS = r"(\d+(?:\.\d+)?)"
_STALL = re.compile(rf"!stall\({_SECONDS}\)")
_RATE = re.compile(rf"!rate\({_SECONDS}\)")
_REPEAT = re.compile(r"!repeat\((\d{1,18}),(.*)\)", re.DOTALL)


class Emit(NamedTuple):
    """The same token a number of times, one per step."""

    token_id: int
    times: int = 1


class Stall(NamedTuple):
    seconds: float


class Rate(NamedTuple):
    per_second: float


class Fail(NamedTuple):
    """An engine error of this sequence alone."""


class Die(NamedTuple):
    """SIGKILL: to parent and engine, or to the engine alone."""

    whom: Literal["worker", "engine"]


Operation: TypeAlias = "Emit | Stall | Rate | Fail | Die"


@dataclass(frozen=True, slots=True)
class Script:
    """What every choice of a request does; behind the last operation comes EOS, for ever."""

    operations: tuple[Operation, ...]
    pieces: tuple[bytes, ...]


class _Pieces:
    """Token ids of byte strings: one byte is itself, any other string has a place in a table."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    def token_id(self, data: bytes) -> int:
        if len(data) == 1:
            return data[0]
        return self._ids.setdefault(data, VOCAB_SIZE + len(self._ids))

    def table(self) -> tuple[bytes, ...]:
        return tuple(self._ids)


def compile_script(prompt_ids: Iterable[int]) -> Script:
    """The script that a prompt asks for; a prompt that is no script is echoed. Never raises."""
    data = script_bytes(list(prompt_ids))
    pieces = _Pieces()
    operations = _read_array(data, pieces)
    if operations is None:
        pieces = _Pieces()
        text = data.decode("utf-8", "surrogateescape")
        operations = [Emit(pieces.token_id(char.encode("utf-8", "surrogateescape"))) for char in text]
    return Script(tuple(operations), pieces.table())


def script_bytes(ids: list[int]) -> bytes:
    """The last user message of a chat, or the whole of any other prompt, special ids left out."""
    if ids[:2] == [BOS, IM_START]:
        for role, content in reversed(list(_messages(ids))):
            if role == b"user":
                return content
        return b""
    return bytes(i for i in ids if i < 256)


def _messages(ids: list[int]) -> Iterator[tuple[bytes, bytes]]:
    start = 0
    while start < len(ids):
        if ids[start] != IM_START:
            start += 1
            continue
        end = next((i for i in range(start, len(ids)) if ids[i] == IM_END), len(ids))
        role, _, content = bytes(i for i in islice(ids, start, end) if i < 256).partition(b"\n")
        yield role, content
        start = end + 1


def _read_array(data: bytes, pieces: _Pieces) -> list[Operation] | None:
    """Operations of a JSON array whose every element is one of ours; None for anything else."""
    try:
        elements = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(elements, list):
        return None
    operations = [_read_element(element, pieces) for element in elements]
    return None if None in operations else [op for op in operations if op is not None]


def _read_element(element: object, pieces: _Pieces) -> Operation | None:
    if isinstance(element, str):
        directive = _read_directive(element, pieces)
        return Emit(pieces.token_id(element.encode("utf-8", "surrogatepass"))) if directive is None else directive
    if isinstance(element, int) and not isinstance(element, bool):
        # An id that no vocabulary can have is an engine fault; one that ours has not is the reader's to refuse.
        return Emit(element) if 0 <= element <= _MAX_ID else Fail()
    if isinstance(element, list) and all(type(byte) is int and 0 <= byte <= 255 for byte in element):
        return Emit(pieces.token_id(bytes(element)))
    return None


def _read_directive(text: str, pieces: _Pieces) -> Operation | None:
    if not text.startswith("!"):
        return None
    fixed: dict[str, Operation] = {"!err": Fail(), "!die": Die("worker"), "!die(engine)": Die("engine")}
    if text in fixed:
        return fixed[text]
    if match := _STALL.fullmatch(text):
        return Stall(float(match[1]))
    if (match := _RATE.fullmatch(text)) and float(match[1]) > 0:
        return Rate(float(match[1]))
    if match := _REPEAT.fullmatch(text):
        return Emit(pieces.token_id(match[2].encode("utf-8", "surrogatepass")), int(match[1]))
    return None


class Cursor:
    """One choice's place in a script. The clock is an argument, in seconds."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._at = 0
        self._repeated = 0
        self._due_s = float("-inf")
        self._interval_s = 0.0

    def advance(self, now: float) -> int | float | Fail | Die:
        """The next token's id; or the time (a float) before which there is none; or what happens instead."""
        while now >= self._due_s:
            operation = self._operation()
            if isinstance(operation, Emit):
                if self._interval_s:
                    self._due_s = max(self._due_s, now - 1.0) + self._interval_s
                self._repeated += 1
                return operation.token_id
            if isinstance(operation, Fail | Die):
                return operation
            self._at += 1
            if isinstance(operation, Stall):
                self._due_s = now + operation.seconds
            else:
                self._interval_s = 1.0 / operation.per_second
                self._due_s = now
        return self._due_s

    def _operation(self) -> Operation:
        while self._at < len(self._script.operations):
            operation = self._script.operations[self._at]
            if not isinstance(operation, Emit) or self._repeated < operation.times:
                return operation
            self._at, self._repeated = self._at + 1, 0
        return Emit(EOS)
