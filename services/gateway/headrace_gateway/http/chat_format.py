"""What /v1/chat/completions writes: chunks of a stream, or one completion. Knows no session."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.answer import Answer, Choice
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.errors import OpenAiErrors, terminal_error
from headrace_gateway.http.json_text import compact, quoted
from headrace_gateway.http.tools import call_object
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


class ChatStream:
    """One stream. Everything but text is put together once."""

    keep_alive = COMMENT

    def __init__(self, head: Head, asked: Asked) -> None:
        base = {"object": "chat.completion.chunk", "id": head.response_id, "created": head.created_at_s}
        self._head = f"data: {compact({**base, 'model': head.model})[:-1]}"
        self._response_id, self._include_usage = head.response_id, asked.include_usage
        self._tail = ',"usage":null}\n\n' if asked.include_usage else "}\n\n"
        self._starts = [f'{self._head},"choices":[{{"index":{index},"delta":{{' for index in range(head.num_choices)]
        self._text_end = f'}},"finish_reason":null}}]{self._tail}'
        self._num_reasoning_tokens = 0

    def opening(self) -> bytes:
        chunks = (f'{start}"role":"assistant","content":""{self._text_end}' for start in self._starts)
        return "".join(chunks).encode()

    def written(self, event: ParsedEvent) -> bytes:
        match event:
            case outputs.Delta():
                return self._text(event)
            case ParsedDelta():
                return self._parsed(event)
            case outputs.ChoiceFinished():
                end = f'}},"finish_reason":"{event.reason}"}}]{self._tail}'
                return f"{self._starts[event.choice]}{end}".encode()
            case outputs.Terminal() if event.kind in ("completed", "incomplete"):
                return self._usage(event.usage) + DONE
            case outputs.Terminal():
                return f"data: {compact(OpenAiErrors().error(terminal_error(event), self._response_id))}\n\n".encode()
        raise AssertionError(f"{event} is no event after created")

    def _text(self, event: outputs.Delta | ParsedDelta) -> bytes:
        if event.logprobs:
            logprobs = compact(logprobs_object(event.logprobs))
            end = f'}},"logprobs":{logprobs},"finish_reason":null}}]{self._tail}'
            return f'{self._starts[event.choice]}"content":{quoted(event.text)}{end}'.encode()
        return f'{self._starts[event.choice]}"content":{quoted(event.text)}{self._text_end}'.encode()

    def _parsed(self, event: ParsedDelta) -> bytes:
        start = self._starts[event.choice]
        if event.reasoning:
            self._num_reasoning_tokens += event.num_tokens
            return f'{start}"reasoning_content":{quoted(event.reasoning)}{self._text_end}'.encode()
        call = event.tool_call
        if call is None:
            return self._text(event)
        if call.name:
            first = {"index": call.index, **call_object(call.call_id, call.name, call.arguments)}
            return f'{start}"tool_calls":[{compact(first)}]{self._text_end}'.encode()
        more = f'{{"index":{call.index},"function":{{"arguments":{quoted(call.arguments)}}}}}'
        return f'{start}"tool_calls":[{more}]{self._text_end}'.encode()

    def _usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that asked for usage: no choice in it."""
        if not self._include_usage:
            return b""
        counted = compact(usage_object(usage, self._num_reasoning_tokens))
        return f'{self._head},"choices":[],"usage":{counted}}}\n\n'.encode()


def completion(head: Head, answer: Answer) -> dict[str, Any]:
    """The whole answer of a request that did not ask for a stream."""
    return {
        "id": head.response_id,
        "object": "chat.completion",
        "created": head.created_at_s,
        "model": head.model,
        "choices": [_choice(index, choice) for index, choice in enumerate(answer.choices)],
        "usage": usage_object(answer.usage, answer.num_reasoning_tokens),
    }


def _choice(index: int, choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.thoughts:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [call_object(call.call_id, call.name, call.arguments) for call in choice.calls]
    entries = logprobs_object(tuple(choice.logprobs)) if choice.logprobs else None
    return {"index": index, "message": message, "logprobs": entries, "finish_reason": choice.reason}


def usage_object(usage: Usage, num_reasoning_tokens: int = 0) -> dict[str, Any]:
    counted: dict[str, Any] = {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }
    if num_reasoning_tokens:
        counted["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return counted


def logprobs_object(entries: tuple[Any, ...]) -> dict[str, Any]:
    content = [{**logprob_entry(one), "top_logprobs": [logprob_entry(top) for top in one.top]} for one in entries]
    return {"content": content, "refusal": None}


def logprob_entry(one: pb.DeliveredLogprob) -> dict[str, Any]:
    return {"token": one.token, "logprob": one.logprob, "bytes": list(one.token_bytes)}
