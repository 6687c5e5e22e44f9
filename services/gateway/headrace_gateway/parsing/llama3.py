"""Calls as Llama 3 writes them: the whole output is `{"name": …, "parameters": {…}}`, several are parted by `;`.

The marker `<|python_tag|>` that may stand before is a control token and never visible. An object that names no tool
of the request is the answer itself.
"""

from __future__ import annotations

from collections.abc import Set

from headrace_gateway.parsing.call_json import CallJson, CallState
from headrace_gateway.parsing.parts import CallPart, Part, Text, merged


class Llama3Parser:
    """Decides at the first object whether the output is calls; from then on, or never, it is text."""

    def __init__(self, tool_names: Set[str]) -> None:
        self._tool_names = tool_names
        self._call: CallJson | None = CallJson()
        self._between = ""
        self._named = False
        self._num_calls = 0
        self._all_whole = True

    @property
    def is_plain(self) -> bool:
        return self._call is None

    @property
    def may_answer(self) -> bool:
        return self._call is None or not (self._named or self._num_calls)

    @property
    def called(self) -> bool:
        return self._num_calls > 0 and self._all_whole and not self._named

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            text = self._step(text, parts)
        return merged(parts)

    def finish(self) -> list[Part]:
        if self._call is None or self._named:
            return []
        held, self._call = self._between + self._call.raw, None
        return [Text(held)] if held and not (self._num_calls and not held.strip(" \t\r\n;")) else []

    def _step(self, text: str, parts: list[Part]) -> str:
        """Reads on; returns what is still to be read."""
        call = self._call
        if call is None:
            parts.append(Text(text))
            return ""
        if not call.has_begun and self._num_calls and text[0] in "; \t\r\n":
            self._between += text[0]
            return text[1:]
        text = text[call.feed(text) :]
        if not self._named and not self._fits(call):
            self._call = None
            parts.append(Text(self._between + call.raw))
            return text
        if call.name is not None and not self._named:
            self._named = True
            parts.append(CallPart(self._num_calls, call.name, ""))
        if arguments := call.take_arguments():
            parts.append(CallPart(self._num_calls, "", arguments))
        if call.state is not CallState.OPEN:
            self._all_whole = self._all_whole and call.state is CallState.DONE
            self._num_calls += 1
            self._call, self._between, self._named = CallJson(), "", False
        return text

    def _fits(self, call: CallJson) -> bool:
        if call.name is None:
            return call.keys_fit and call.state is not CallState.BROKEN
        return call.keys_fit and call.name in self._tool_names
