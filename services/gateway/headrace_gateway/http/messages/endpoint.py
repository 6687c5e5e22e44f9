"""The API itself, and its counting twin."""

from typing import Any

from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.errors import AnthropicErrors
from headrace_gateway.http.fields import Fields
from headrace_gateway.http.messages.format import MessageStream, whole_message
from headrace_gateway.http.messages.request import parse_messages


class MessagesApi(AnthropicErrors):
    """Messages, as Anthropic has them. `counting`: bodies of /v1/messages/count_tokens."""

    name = "messages"

    def __init__(self, *, counting: bool = False) -> None:
        self._counting = counting

    def parse(self, body: Fields) -> Asked:
        return parse_messages(body, counting=self._counting)

    def stream(self, head: Head, asked: Asked) -> MessageStream:
        return MessageStream(head, asked)

    def whole(self, head: Head, asked: Asked, answer: Answer) -> dict[str, Any]:
        return whole_message(head, answer)
