"""What /v1/chat/completions writes: chunks of a stream, or one completion. Knows no session."""

import json
from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.lifecycle.settlement import Usage

DONE = b"data: [DONE]\n\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class ChatFormat:
    """One response: id, model and time are the same in everything it writes."""

    def __init__(self, response_id: str, model: str, created_at_s: int, *, include_usage: bool) -> None:
        self._base = {"id": response_id, "created": created_at_s, "model": model}
        self._head = 'data: {"object":"chat.completion.chunk",' + _dump(self._base)[1:-1]
        self._tail = ',"usage":null}\n\n' if include_usage else "}\n\n"

    def role(self, choice: int) -> bytes:
        return self._chunk(choice, '{"role":"assistant","content":""}', "null", "")

    def delta(self, choice: int, text: str, logprobs: tuple[Any, ...]) -> bytes:
        extra = f',"logprobs":{_dump(logprobs_object(logprobs))}' if logprobs else ""
        return self._chunk(choice, f'{{"content":{_dump(text)}}}', "null", extra)

    def finish(self, choice: int, reason: str) -> bytes:
        return self._chunk(choice, "{}", f'"{reason}"', "")

    def usage(self, usage: Usage) -> bytes:
        """The last chunk of a stream that asked for usage: no choice in it."""
        return f'{self._head},"choices":[],"usage":{_dump(usage_object(usage))}}}\n\n'.encode()

    def completion(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The whole answer of a request that did not ask for a stream."""
        return {**self._base, "object": "chat.completion", "choices": choices, "usage": usage_object(usage)}

    def _chunk(self, choice: int, delta: str, reason: str, extra: str) -> bytes:
        body = f'"index":{choice},"delta":{delta}{extra},"finish_reason":{reason}'
        return f'{self._head},"choices":[{{{body}}}]{self._tail}'.encode()


def choice_object(index: int, text: str, reason: str, logprobs: list[Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    entries = logprobs_object(tuple(logprobs)) if logprobs else None
    return {"index": index, "message": message, "logprobs": entries, "finish_reason": reason}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def logprobs_object(entries: tuple[Any, ...]) -> dict[str, Any]:
    return {"content": [{**_entry(one), "top_logprobs": [_entry(top) for top in one.top]} for one in entries]}


def _entry(one: pb.DeliveredLogprob) -> dict[str, Any]:
    return {"token": one.token, "logprob": one.logprob, "bytes": list(one.token_bytes)}
