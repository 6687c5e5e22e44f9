"""Calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, between other text."""

from __future__ import annotations

from headrace_gateway.parsing.call_json import CallJson, CallState
from headrace_gateway.parsing.parts import CallPart, Part, Text, held_prefix, merged

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """Text outside the tags stays text, but for the space between two calls. What is in them and no call is text too,
    unless it broke after a part of it was out: that call is never called whole."""

    def __init__(self) -> None:
        self._held = ""
        self._call: CallJson | None = None
        self._closing = False
        self._named = False
        self._num_calls = 0
        self._all_whole = True

    is_plain = False

    @property
    def may_answer(self) -> bool:
        return self._call is None and not self._closing

    @property
    def called(self) -> bool:
        return self._num_calls > 0 and self._all_whole and not self._named

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        self._held += text
        while self._step(parts):
            pass
        return merged(parts)

    def finish(self) -> list[Part]:
        """What is held is no tag and no call any more."""
        held, self._held = self._held, ""
        if self._call is not None and not self._named:
            held = OPEN + self._call.raw + held
            self._call = None
        if self._closing or self._named:
            return []
        return [Text(held)] if held and not (self._num_calls and held.isspace()) else []

    def _step(self, parts: list[Part]) -> bool:
        """Reads on in what is held; False when it needs more."""
        if self._closing:
            return self._skip_close()
        if self._call is not None:
            return self._read_call(self._call, parts)
        return self._read_text(parts)

    def _read_text(self, parts: list[Part]) -> bool:
        before, tag, after = self._held.partition(OPEN)
        if tag:
            self._emit_text(before, parts)
            self._held, self._call = after, CallJson()
            return True
        size = held_prefix(self._held, OPEN)
        free = self._held[: len(self._held) - size]
        if self._num_calls:
            free = free.rstrip()  # space behind a call may stand before the next one, or end the text
        self._held = self._held[len(free) :]
        if free:
            parts.append(Text(free))
        return False

    def _emit_text(self, text: str, parts: list[Part]) -> None:
        text = text.rstrip() if self._num_calls else text
        if text:
            parts.append(Text(text))

    def _read_call(self, call: CallJson, parts: list[Part]) -> bool:
        if not self._held:
            return False
        self._held = self._held[call.feed(self._held) :]
        if call.name is not None and not self._named:
            self._named = True
            parts.append(CallPart(self._num_calls, call.name, ""))
        if self._named and (arguments := call.take_arguments()):
            parts.append(CallPart(self._num_calls, "", arguments))
        if call.state is CallState.OPEN:
            return False
        self._call = None
        if self._named:
            self._all_whole = self._all_whole and call.state is CallState.DONE
            self._num_calls += 1
            self._named, self._closing = False, True
        else:
            self._emit_text(OPEN + call.raw, parts)
        return True

    def _skip_close(self) -> bool:
        """Everything up to the closing tag belongs to the call."""
        _, tag, after = self._held.partition(CLOSE)
        if not tag:
            self._held = self._held[len(self._held) - held_prefix(self._held, CLOSE) :]
            return False
        self._held, self._closing = after, False
        return bool(after)
