"""The events of one streamed response: numbered without gaps, every item added, filled and done, one ending."""

from typing import Any

from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.chat_format import COMMENT
from headrace_gateway.http.json_text import compact, quoted
from headrace_gateway.http.responses.object import ResponseObject
from headrace_gateway.http.responses.output import OutputItem, logprob_object, mark_cut
from headrace_gateway.lifecycle import outputs
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent

_DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


class ResponseStream:
    """One stream. A delta is put together from texts; all else is rare enough for dictionaries."""

    keep_alive = COMMENT

    def __init__(self, head: Head, asked: Asked) -> None:
        self._object = ResponseObject(head, asked)
        self._number = 0
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._delta_head = ""
        self._num_reasoning_tokens = 0
        self._reason = ""

    def opening(self) -> bytes:
        running = self._object.running()
        events = ("response.created", "response.in_progress")
        return "".join(self._event(name, {"response": running}) for name in events).encode()

    def written(self, event: ParsedEvent) -> bytes:
        match event:
            case outputs.Delta():
                return self._text("message", event.text, event.logprobs).encode()
            case ParsedDelta():
                return self._parsed(event).encode()
            case outputs.ChoiceFinished():
                self._reason = event.reason
                return b""  # the last item is done when the response is
            case outputs.Terminal():
                return self._end(event).encode()
        raise AssertionError(f"{event} is no event after created")

    def _parsed(self, event: ParsedDelta) -> str:
        call = event.tool_call
        if call is None and not event.reasoning:
            return self._text("message", event.text, event.logprobs)
        if call is None:
            self._num_reasoning_tokens += event.num_tokens
            return self._text("reasoning", event.reasoning, ())
        begun = self._begin("function_call", call_id=call.call_id, name=call.name) if call.name else ""
        return begun + (self._delta(call.arguments, ()) if call.arguments else "")

    def _text(self, kind: str, text: str, logprobs: tuple[Any, ...]) -> str:
        if self._open is None or self._open.kind != kind:
            return self._begin(kind) + self._delta(text, logprobs)
        return self._delta(text, logprobs)

    def _delta(self, text: str, logprobs: tuple[Any, ...]) -> str:
        assert self._open is not None, "a delta belongs to an open item"
        self._open.texts.append(text)
        number = self._number
        self._number = number + 1
        end = ""
        if self._open.kind == "message":
            self._open.logprobs.extend(logprobs)
            end = f',"logprobs":{compact([logprob_object(one) for one in logprobs])}' if logprobs else ',"logprobs":[]'
        return f'{self._delta_head}{number},"delta":{quoted(text)}{end}}}\n\n'

    def _begin(self, kind: str, *, call_id: str = "", name: str = "") -> str:
        """Closes the item that was open, and opens the next."""
        closed = self._close()
        item = self._open = OutputItem(kind, len(self._items), call_id=call_id, name=name)
        self._items.append(item)
        event = f"response.{_DELTAS[kind]}.delta"
        place = {"type": event, **self._place(item), "sequence_number": 0}
        self._delta_head = f"event: {event}\ndata: {compact(place)[:-2]}"  # without the number
        added = self._event("response.output_item.added", {"output_index": item.index, "item": item.added()})
        return closed + added + self._part("added", item, item.empty_part())

    def _close(self) -> str:
        item, self._open = self._open, None
        if item is None:
            return ""
        done: dict[str, Any] = {"text": item.text}
        if item.kind == "function_call":
            done = {"arguments": item.text, "name": item.name}
        elif item.kind == "message":
            done["logprobs"] = [logprob_object(one) for one in item.logprobs]
        text_done = self._event(f"response.{_DELTAS[item.kind]}.done", {**self._place(item), **done})
        item_done = {"output_index": item.index, "item": item.done()}
        return text_done + self._part("done", item, item.part()) + self._event("response.output_item.done", item_done)

    def _end(self, terminal: outputs.Terminal) -> str:
        """A failure closes nothing: the one event that says so is all that follows."""
        written = ""
        if terminal.kind in ("completed", "incomplete"):
            if not self._items:
                written = self._begin("message")
            mark_cut(self._items, terminal.kind, self._reason)
            written += self._close()
            name = f"response.{terminal.kind}"
        else:
            mark_cut(self._items, terminal.kind, self._reason)
            name = "response.failed"
        ended = self._object.ended(terminal, self._items, self._num_reasoning_tokens)
        return written + self._event(name, {"response": ended})

    def _part(self, what: str, item: OutputItem, part: dict[str, Any]) -> str:
        if item.kind == "function_call":
            return ""
        return self._event(f"response.content_part.{what}", {**self._place(item), "part": part})

    @staticmethod
    def _place(item: OutputItem) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.item_id, "output_index": item.index}
        return place if item.kind == "function_call" else {**place, "content_index": 0}

    def _event(self, name: str, fields: dict[str, Any]) -> str:
        content = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {name}\ndata: {compact(content)}\n\n"
