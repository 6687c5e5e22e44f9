"""The API itself."""

from typing import Any

from headrace_gateway.http.answer import Answer, Choice
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.errors import OpenAiErrors
from headrace_gateway.http.fields import Fields
from headrace_gateway.http.responses.object import ResponseObject
from headrace_gateway.http.responses.output import OutputItem, mark_cut
from headrace_gateway.http.responses.request import parse_response
from headrace_gateway.http.responses.stream import ResponseStream


class ResponsesApi(OpenAiErrors):
    """Responses, as OpenAI has them, none stored."""

    name = "responses"

    def parse(self, body: Fields) -> Asked:
        return parse_response(body)

    def stream(self, head: Head, asked: Asked) -> ResponseStream:
        return ResponseStream(head, asked)

    def whole(self, head: Head, asked: Asked, answer: Answer) -> dict[str, Any]:
        assert answer.terminal is not None, "an answer is whole at its end"
        items = _items(answer.choices[0])
        mark_cut(items, answer.terminal.kind, answer.choices[0].reason)
        return ResponseObject(head, asked).ended(answer.terminal, items, answer.num_reasoning_tokens)


def _items(choice: Choice) -> list[OutputItem]:
    """In the order in which models write them: thoughts, text, calls."""
    items: list[OutputItem] = []
    if choice.thoughts:
        items.append(OutputItem("reasoning", 0))
        items[-1].texts = choice.thoughts
    if choice.texts or not (choice.calls or choice.thoughts):
        items.append(OutputItem("message", len(items)))
        items[-1].texts, items[-1].logprobs = choice.texts, choice.logprobs
    for call in choice.calls:
        items.append(OutputItem("function_call", len(items), call_id=call.call_id, name=call.name))
        items[-1].texts = [call.arguments]
    return items
