"""What each surface writes: (seconds before it, event name, object or [DONE]) in order. Correct by itself."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Any

from tests.unit.conformance.reference.writing import Text

Wire = tuple[float, str, Any]
DONE = "[DONE]"
ERROR = {"message": "the engine failed", "type": "server_error", "param": None, "code": "engine_error"}


@dataclass(frozen=True)
class Answer:
    """One response: what all its surfaces need to know."""

    id: str
    model: str
    texts: list[Text]
    num_prompt: int
    include_usage: bool = False
    logprobs: bool = False

    @property
    def num_output(self) -> int:
        return sum(text.num_tokens for text in self.texts)

    @property
    def failed(self) -> bool:
        return any(text.failed for text in self.texts)

    def usage(self) -> dict[str, int]:
        prompt, output = self.num_prompt, self.num_output
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def chunks(answer: Answer, surface: str) -> Iterator[Wire]:
    """A chat or completions stream."""
    kind = "chat.completion.chunk" if surface == "chat" else "text_completion"
    base = {"id": answer.id, "object": kind, "created": 1700000000, "model": answer.model}

    def chunk(choice: int, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        said = {"delta": delta} if surface == "chat" else {"text": delta.get("content", "")}
        return {**base, "choices": [{"index": choice, **said, "logprobs": logprobs, "finish_reason": finish}]}

    if surface == "chat":
        for choice in range(len(answer.texts)):
            yield 0.0, "", chunk(choice, {"role": "assistant", "content": ""})
    for step in zip_longest(*(text.deltas for text in answer.texts)):
        for choice, delta in enumerate(step):
            if delta is not None:
                entries = {"content": delta[2], "refusal": None} if answer.logprobs else None
                yield delta[0], "", chunk(choice, {"content": delta[1]}, None, entries)
    if answer.failed:
        yield 0.0, "", {"error": {**ERROR, "response_id": answer.id}}
        return
    for choice, text in enumerate(answer.texts):
        yield 0.0, "", chunk(choice, {}, text.reason)
    if answer.include_usage:
        yield 0.0, "", {**base, "choices": [], "usage": answer.usage()}
    yield 0.0, "", DONE


def responses(answer: Answer) -> Iterator[Wire]:
    """A /v1/responses stream."""
    numbers, text = count(), answer.texts[0]
    item, whole = f"msg_{answer.id}", "".join(delta[1] for delta in text.deltas)
    place = {"item_id": item, "output_index": 0, "content_index": 0}

    def event(kind: str, **fields: Any) -> Wire:
        return 0.0, kind, {"type": kind, "sequence_number": next(numbers), **fields}

    for kind in ("response.created", "response.in_progress"):
        yield event(kind, response=response(answer, "in_progress"))
    yield event("response.output_item.added", output_index=0, item=_item(item, "in_progress", []))
    yield event("response.content_part.added", **place, part=_part(""))
    for delay_s, piece, _ in text.deltas:
        yield (delay_s, *event("response.output_text.delta", **place, delta=piece, logprobs=[])[1:])
    if answer.failed:
        yield event("response.failed", response=response(answer, "failed"))
        return
    status = "incomplete" if text.reason == "length" else "completed"
    yield event("response.output_text.done", **place, text=whole, logprobs=[])
    yield event("response.content_part.done", **place, part=_part(whole))
    yield event("response.output_item.done", output_index=0, item=_item(item, status, [_part(whole)]))
    yield event(f"response.{status}", response=response(answer, status))


def response(answer: Answer, status: str) -> dict[str, Any]:
    """The response object; its output is there once it has ended well."""
    ended, text = status in ("completed", "incomplete"), answer.texts[0]
    whole = _part("".join(delta[1] for delta in text.deltas))
    usage = {"input_tokens": answer.num_prompt, "output_tokens": answer.num_output,
             "total_tokens": answer.num_prompt + answer.num_output, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    return {
        "id": answer.id, "object": "response", "created_at": 1700000000, "status": status, "model": answer.model,
        "error": {"code": ERROR["code"], "message": ERROR["message"]} if status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1, "tools": [], "tool_choice": "auto",
        "parallel_tool_calls": True, "output": [_item(f"msg_{answer.id}", status, [whole])] if ended else [],
        "usage": usage if ended else None,
    }  # fmt: skip


def messages(answer: Answer) -> Iterator[Wire]:
    """An Anthropic stream."""
    text = answer.texts[0]

    def event(kind: str, **fields: Any) -> Wire:
        return 0.0, kind, {"type": kind, **fields}

    yield event("message_start", message={
        "id": answer.id, "type": "message", "role": "assistant", "model": answer.model, "content": [],
        "stop_reason": None, "usage": {"input_tokens": answer.num_prompt, "output_tokens": 0}})  # fmt: skip
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for delay_s, piece, _ in text.deltas:
        delta = {"type": "text_delta", "text": piece}
        yield (delay_s, *event("content_block_delta", index=0, delta=delta)[1:])
    if answer.failed:
        yield event("error", error={"type": "api_error", "message": ERROR["message"]})
        return
    yield event("content_block_stop", index=0)
    reason = "max_tokens" if text.reason == "length" else "end_turn"
    yield event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": answer.num_output})
    yield event("message_stop")


def encoded(name: str, content: Any, prefix: str = "") -> bytes:
    """One event as bytes; ``prefix`` goes before the text of a chat chunk."""
    if isinstance(content, bytes):
        return content
    if prefix and isinstance(content, dict) and (choices := content.get("choices")):
        delta = choices[0].get("delta", {})
        if delta.get("content"):
            delta["content"] = prefix + delta["content"]
    data = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def _item(item: str, status: str, content: list[Any]) -> dict[str, Any]:
    return {"id": item, "type": "message", "status": status, "role": "assistant", "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
