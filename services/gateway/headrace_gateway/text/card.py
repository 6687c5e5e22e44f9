"""The model card: what a gateway must know of a model to speak for it without its weights.

The format is described in docs/model-card.md. A card comes from a worker by way of the control plane, so it is checked
here like any input: a bad one raises CardError naming the field.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

CARD_FORMAT = 1
HUGGINGFACE, SCRIPTED = "huggingface", "scripted"

SCRIPTED_TEMPLATE = (
    "<bos>{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant{{ '\n' }}"
)
_SCRIPTED_DIGEST = hashlib.sha256(b"headrace scripted tokenizer 1").digest()


class CardError(ValueError):
    """A card that cannot be used: `field` is the path of what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"model card: {field} {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model's texts and limits, in tokens and inclusive. `tokenizer_json` is None for the scripted kind."""

    kind: str
    fingerprint: bytes
    tokenizer_json: str | None
    tokenizer_digest: bytes
    chat_template: str | None
    end_token_ids: frozenset[int]
    max_context: int
    default_output: int
    vocab_size: int
    special_tokens: dict[str, str] = field(default_factory=dict)

    @property
    def can_chat(self) -> bool:
        return self.chat_template is not None


def parse_card(data: bytes) -> ModelCard:
    """A card from the bytes that its digest names; raises CardError."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CardError("card", f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise CardError("card", "must be an object")
    if values.get("format") != CARD_FORMAT or isinstance(values["format"], bool):
        raise CardError("format", f"is {values.get('format')!r}; this gateway reads {CARD_FORMAT}")
    kind = values.get("kind", HUGGINGFACE)
    if kind not in (HUGGINGFACE, SCRIPTED):
        raise CardError("kind", f"is {kind!r}; known are {HUGGINGFACE} and {SCRIPTED}")
    limits = _get(values, "limits", dict)
    vocab_size = _positive(limits, "limits", "vocab_size")
    tokenizer_json, digest = (None, _SCRIPTED_DIGEST) if kind == SCRIPTED else _tokenizer(values)
    return ModelCard(
        kind=kind,
        fingerprint=_hex(values, "fingerprint"),
        tokenizer_json=tokenizer_json,
        tokenizer_digest=digest,
        chat_template=SCRIPTED_TEMPLATE if kind == SCRIPTED else _optional_text(values, "chat_template"),
        end_token_ids=_ids(values, "end_token_ids", vocab_size),
        max_context=_positive(limits, "limits", "max_context"),
        default_output=_positive(limits, "limits", "default_output"),
        vocab_size=vocab_size,
        special_tokens=_special_tokens(values),
    )


def _get(values: dict[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CardError(name, f"must be {kind.__name__}, is {type(value).__name__}")
    return value


def _positive(values: dict[str, Any], path: str, name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CardError(f"{path}.{name}", f"must be a positive integer, is {value!r}")
    return value


def _hex(values: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(_get(values, name, str))
    except ValueError:
        raise CardError(name, "must be hexadecimal") from None


def _optional_text(values: dict[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else str(_get(values, name, str))


def _ids(values: dict[str, Any], name: str, vocab_size: int) -> frozenset[int]:
    ids = _get(values, name, list)
    for value in ids:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise CardError(name, f"must hold ids below {vocab_size}, holds {value!r}")
    return frozenset(ids)


def _special_tokens(values: dict[str, Any]) -> dict[str, str]:
    tokens = values.get("special_tokens") or {}
    if not isinstance(tokens, dict) or not all(isinstance(text, str) for text in tokens.values()):
        raise CardError("special_tokens", "must map names to texts")
    return {str(name): text for name, text in tokens.items()}


def _tokenizer(values: dict[str, Any]) -> tuple[str, bytes]:
    text = _get(values, "tokenizer", str)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    if _hex(values, "tokenizer_digest") != digest:
        raise CardError("tokenizer_digest", "is not the SHA-256 of tokenizer")
    return text, digest
