"""The model card: all that a gateway needs to speak for a model without its weights, as bytes that never vary."""

import hashlib
from dataclasses import dataclass
from typing import Any

from headrace_worker.models.text_assets import TextAssets, canonical_json

CARD_FORMAT = 1


@dataclass(frozen=True)
class CardLimits:
    """Tokens. `max_context` is prompt and output together."""

    max_context: int
    default_output: int
    vocab_size: int


@dataclass(frozen=True)
class ModelCard:
    """Two cards with the same content are the same bytes, and so have the same digest."""

    family: str
    revision: str
    fingerprint: str
    """Hex digest of weights, configuration and revision."""
    limits: CardLimits
    text: TextAssets

    def contents(self) -> dict[str, Any]:
        """The card as plain data. `tokenizer` is the text of a tokenizer.json, whose digest roots prefix chains."""
        return {
            "format": CARD_FORMAT,
            "family": self.family,
            "revision": self.revision,
            "fingerprint": self.fingerprint,
            "limits": {
                "max_context": self.limits.max_context,
                "default_output": self.limits.default_output,
                "vocab_size": self.limits.vocab_size,
            },
            "capabilities": {"chat": self.text.chat_template is not None},
            "chat_template": self.text.chat_template,
            "end_token_ids": list(self.text.end_token_ids),
            "special_tokens": self.text.special_tokens,
            "tokenizer": self.text.tokenizer_json,
            "tokenizer_digest": hashlib.sha256(self.text.tokenizer_json.encode()).hexdigest(),
        }

    def to_bytes(self) -> bytes:
        """Canonical JSON in UTF-8: sorted keys, no spaces."""
        return canonical_json(self.contents()).encode()

    def digest(self) -> bytes:
        """SHA-256 of `to_bytes`: the name under which the control plane stores it."""
        return hashlib.sha256(self.to_bytes()).digest()
