"""From what a client sent to prompt ids, for one model: its template and its tokenizer behind three methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace_gateway.text.card import ModelCard
from headrace_gateway.text.chat_template import ChatTemplate
from headrace_gateway.text.tokenizer import Tokenizer, load_tokenizer
from headrace_kit.errors import HeadraceError


class PromptEncoder:
    """Built once per model card; raises CardError for a card that cannot be used. Thread-safe."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.tokenizer: Tokenizer = load_tokenizer(card)
        self._template = ChatTemplate(card, self.tokenizer.markers) if card.can_chat else None

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, now: datetime
    ) -> list[int]:
        """Ids of a conversation up to the assistant's turn.

        Messages are mappings as templates expect them: role, content, and where given name, tool_calls, tool_call_id.
        """
        if self._template is None:
            raise HeadraceError("no_chat_template", "this model has no chat template; use completions")
        spans = self._template.render(messages, tools, now)
        _check_encodable("".join(span.text for span in spans), "messages")
        return self.tokenizer.encode_prompt(spans)

    def raw(self, text: str) -> list[int]:
        """Ids of a text that the model continues."""
        _check_encodable(text, "prompt")
        return self.tokenizer.encode_raw(text)

    def checked(self, token_ids: Sequence[int], field: str) -> list[int]:
        """Ids that a client sent, each in the model's vocabulary."""
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise HeadraceError("invalid_argument", f"{field} must hold integers, holds {token_id!r}", field=field)
            if not 0 <= token_id < self.card.vocab_size:
                message = f"{field} holds {token_id}, outside the vocabulary of {self.card.vocab_size}"
                raise HeadraceError("invalid_argument", message, field=field)
        return list(token_ids)


def _check_encodable(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field} holds a lone surrogate at character {error.start}, which is no Unicode text"
        raise HeadraceError("invalid_argument", message, field=field) from None
