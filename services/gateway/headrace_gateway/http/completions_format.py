"""What /v1/completions writes: chunks of a stream, or one completion. Knows no session."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.chat_format import COMMENT, DONE, usage_object
from headrace_gateway.http.errors import OpenAiErrors, terminal_error
from headrace_gateway.http.json_text import compact, quoted
from headrace_gateway.lifecycle import outputs
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent


class CompletionStream:
    """One stream; `created` shows in the headers only."""

    keep_alive = COMMENT

    def __init__(self, head: Head, asked: Asked) -> None:
        base = {"object": "text_completion", "id": head.response_id, "created": head.created_at_s}
        self._head = f"data: {compact({**base, 'model': head.model})[:-1]}"
        self._response_id, self._include_usage = head.response_id, asked.include_usage
        self._tail = ',"usage":null}\n\n' if asked.include_usage else "}\n\n"
        self._starts = [f'{self._head},"choices":[{{"index":{index},"text":' for index in range(head.num_choices)]
        self._text_end = f',"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._offsets = [0] * head.num_choices

    def opening(self) -> bytes:
        return b""

    def written(self, event: ParsedEvent) -> bytes:
        match event:
            case outputs.Delta():
                return f"{self._starts[event.choice]}{quoted(event.text)}{self._end(event)}".encode()
            case outputs.ChoiceFinished():
                end = f'"","logprobs":null,"finish_reason":"{event.reason}"}}]{self._tail}'
                return f"{self._starts[event.choice]}{end}".encode()
            case outputs.Terminal() if event.kind in ("completed", "incomplete"):
                usage = f'{self._head},"choices":[],"usage":{compact(usage_object(event.usage))}}}\n\n'.encode()
                return (usage if self._include_usage else b"") + DONE
            case outputs.Terminal():
                return f"data: {compact(OpenAiErrors().error(terminal_error(event), self._response_id))}\n\n".encode()
        raise AssertionError(f"{event} is no event of a completion")

    def _end(self, event: outputs.Delta | ParsedDelta) -> str:
        if not event.logprobs:
            return self._text_end
        logprobs, self._offsets[event.choice] = logprobs_object(event.logprobs, self._offsets[event.choice])
        return f',"logprobs":{compact(logprobs)},"finish_reason":null}}]{self._tail}'


def completion(head: Head, answer: Answer) -> dict[str, Any]:
    """The whole answer of a request that did not ask for a stream."""
    choices = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": logprobs_object(tuple(choice.logprobs), 0)[0] if choice.logprobs else None,
            "finish_reason": choice.reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    return {
        "id": head.response_id,
        "object": "text_completion",
        "created": head.created_at_s,
        "model": head.model,
        "choices": choices,
        "usage": usage_object(answer.usage),
    }


def logprobs_object(entries: tuple[Any, ...], offset: int) -> tuple[dict[str, Any], int]:
    """The four parallel arrays of the older format, and the offset in code points behind the last token."""
    offsets = []
    for one in entries:
        offsets.append(offset)
        offset += sum(byte & 0xC0 != 0x80 for byte in one.token_bytes)  # bytes that begin a character
    return {
        "tokens": [one.token for one in entries],
        "token_logprobs": [one.logprob for one in entries],
        "top_logprobs": [_alternatives(one) for one in entries],
        "text_offset": offsets,
    }, offset


def _alternatives(one: pb.DeliveredLogprob) -> dict[str, float]:
    return {top.token: top.logprob for top in one.top}
