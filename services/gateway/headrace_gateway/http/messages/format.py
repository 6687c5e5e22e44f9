"""What /v1/messages writes: the events of a stream, or one message. Knows no session."""

import json
from typing import Any

from headrace_gateway.http.answer import Answer, Call
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.errors import AnthropicErrors, terminal_error
from headrace_gateway.http.json_text import compact, quoted
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
           "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip
_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class MessageStream:
    """One stream: blocks follow one another, each opened and closed; a failure closes nothing."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, head: Head, asked: Asked) -> None:
        self._head = head
        self._kind = ""
        self._index = -1
        self._delta_head = ""
        self._reason, self._stop = "stop", ""

    def opening(self) -> bytes:
        started = {**_message(self._head), "content": [], "stop_reason": None, "stop_sequence": None}
        started["usage"] = {"input_tokens": self._head.num_prompt_tokens, "output_tokens": 0}
        return _event("message_start", {"message": started}).encode()

    def written(self, event: ParsedEvent) -> bytes:
        match event:
            case outputs.Delta():
                return self._text("text", event.text).encode()
            case ParsedDelta():
                return self._parsed(event).encode()
            case outputs.ChoiceFinished():
                self._reason, self._stop = event.reason, event.stop
                return b""
            case outputs.Terminal() if event.kind in ("completed", "incomplete"):
                return self._end(event).encode()
            case outputs.Terminal():
                body = AnthropicErrors().error(terminal_error(event), self._head.response_id)
                return f"event: error\ndata: {compact(body)}\n\n".encode()
        raise AssertionError(f"{event} is no event after created")

    def _parsed(self, event: ParsedDelta) -> str:
        call = event.tool_call
        if call is None:
            return self._text("thinking", event.reasoning) if event.reasoning else self._text("text", event.text)
        if call.name:
            block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
            return self._begin("tool_use", block) + (self._delta(call.arguments) if call.arguments else "")
        return self._delta(call.arguments)

    def _text(self, kind: str, text: str) -> str:
        if self._kind != kind:
            return self._begin(kind, _BLOCKS[kind]) + self._delta(text)
        return self._delta(text)

    def _delta(self, text: str) -> str:
        return f"{self._delta_head}{quoted(text)}}}}}\n\n"

    def _begin(self, kind: str, block: dict[str, Any]) -> str:
        closed = self._close()
        self._kind = kind
        self._index += 1
        delta, name = _DELTAS[kind]
        self._delta_head = (
            f'event: content_block_delta\ndata: {{"type":"content_block_delta","index":{self._index},'
            f'"delta":{{"type":"{delta}","{name}":'
        )
        return closed + _event("content_block_start", {"index": self._index, "content_block": block})

    def _close(self) -> str:
        return _event("content_block_stop", {"index": self._index}) if self._kind else ""

    def _end(self, terminal: outputs.Terminal) -> str:
        delta = ending(self._reason, self._stop, terminal)
        ended = _event("message_delta", {"delta": delta, "usage": usage_object(terminal.usage)})
        return self._close() + ended + _event("message_stop", {})


def whole_message(head: Head, answer: Answer) -> dict[str, Any]:
    """The whole answer of a request that did not ask for a stream."""
    choice = answer.choices[0]
    assert answer.terminal is not None, "an answer is whole at its end"
    content: list[dict[str, Any]] = []
    if choice.thoughts:
        content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
    if choice.texts:
        content.append({"type": "text", "text": choice.text})
    content += [_tool_use(call) for call in choice.calls]
    return {
        **_message(head),
        "content": content,
        **ending(choice.reason, choice.stop, answer.terminal),
        "usage": usage_object(answer.usage),
    }


def ending(reason: str, stop: str, terminal: outputs.Terminal) -> dict[str, str | None]:
    """`stop` is the stop string that ended the text; a whole call or a rule says more than it."""
    if terminal.reason == "content_filter":
        reason = "content_filter"
    if reason == "stop" and stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Anthropic counts what came from a cache apart from the other input."""
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
    }


def _message(head: Head) -> dict[str, Any]:
    return {"id": head.response_id, "type": "message", "role": "assistant", "model": head.model}


def _tool_use(call: Call) -> dict[str, Any]:
    """A call that was cut has no arguments that could be told."""
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = {}
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}


def _event(name: str, fields: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {compact({'type': name, **fields})}\n\n"
