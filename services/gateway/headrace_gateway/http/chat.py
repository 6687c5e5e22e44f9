"""The API /v1/chat/completions."""

from typing import Any

from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.chat_format import ChatStream, completion
from headrace_gateway.http.chat_request import parse_chat
from headrace_gateway.http.errors import OpenAiErrors
from headrace_gateway.http.fields import Fields


class ChatApi(OpenAiErrors):
    """Chat completions, as OpenAI has them."""

    name = "chat"

    def parse(self, body: Fields) -> Asked:
        return parse_chat(body)

    def stream(self, head: Head, asked: Asked) -> ChatStream:
        return ChatStream(head, asked)

    def whole(self, head: Head, asked: Asked, answer: Answer) -> dict[str, Any]:
        return completion(head, answer)
