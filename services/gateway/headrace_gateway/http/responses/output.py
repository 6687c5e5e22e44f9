"""The output items of a response: messages, thoughts and calls. Each is open while its text comes."""

import secrets
from typing import Any

from headrace_gateway.http.chat_format import logprob_entry


class OutputItem:
    """One item. `logprobs` are of a message's text only; `whole` is taken away from what was cut."""

    def __init__(self, kind: str, index: int, *, call_id: str = "", name: str = "") -> None:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        self.kind, self.index, self.item_id = kind, index, f"{prefix}_{secrets.token_hex(12)}"
        self.call_id, self.name = call_id, name
        self.whole = True
        self.texts: list[str] = []
        self.logprobs: list[Any] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def added(self) -> dict[str, Any]:
        """As it is announced: without content."""
        return self._object("in_progress", [], "")

    def done(self) -> dict[str, Any]:
        """As it is with all its text."""
        status = "completed" if self.whole else "incomplete"
        return self._object(status, [] if self.kind == "function_call" else [self.part()], self.text)

    def empty_part(self) -> dict[str, Any]:
        return self._part("", [])

    def part(self) -> dict[str, Any]:
        return self._part(self.text, [logprob_object(one) for one in self.logprobs])

    def _part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _object(self, status: str, content: list[dict[str, Any]], text: str) -> dict[str, Any]:
        base: dict[str, Any] = {"id": self.item_id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**base, "call_id": self.call_id, "name": self.name, "arguments": text}
        if self.kind == "reasoning":
            return {**base, "summary": [], "content": content}
        return {**base, "role": "assistant", "content": content}


def logprob_object(one: Any) -> dict[str, Any]:
    return {**logprob_entry(one), "top_logprobs": [logprob_entry(top) for top in one.top]}


def mark_cut(items: list[OutputItem], kind: str, reason: str) -> None:
    """Only the last item can be cut: by the end of the response, or as a call that the model did not finish."""
    if items and (kind != "completed" or (items[-1].kind == "function_call" and reason != "tool_calls")):
        items[-1].whole = False
