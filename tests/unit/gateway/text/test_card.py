"""Cards are input: every fault names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_gateway.text.card import CardError, parse_card

from .toy_models import byte_level, make_card

LIMITS = {"max_context": 8192, "default_output": 1024, "vocab_size": 260}


def test_a_scripted_card_needs_no_tokenizer() -> None:
    card = parse_card(make_card())
    assert (card.kind, card.can_chat, card.tokenizer_json) == ("scripted", True, None)
    assert (card.max_context, card.default_output, card.vocab_size) == (8192, 1024, 260)
    assert card.end_token_ids == {257, 259} and len(card.tokenizer_digest) == 32


def test_a_card_without_kind_is_a_hugging_face_card() -> None:
    text = byte_level().tokenizer_json
    fields: dict[str, Any] = {"kind": None, "tokenizer": text, "tokenizer_digest": byte_level().tokenizer_digest.hex()}
    assert parse_card(make_card(**fields)).kind == "huggingface"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("format", {"format": 2}),
        ("format", {"format": True}),
        ("kind", {"kind": "gpt"}),
        ("fingerprint", {"fingerprint": "xyz"}),
        ("fingerprint", {"fingerprint": None}),
        ("limits", {"limits": [1]}),
        ("limits.max_context", {"limits": LIMITS | {"max_context": 0}}),
        ("limits.default_output", {"limits": LIMITS | {"default_output": True}}),
        ("limits.vocab_size", {"limits": LIMITS | {"vocab_size": "9"}}),
        ("end_token_ids", {"end_token_ids": [260]}),
        ("end_token_ids", {"end_token_ids": [-1]}),
        ("end_token_ids", {"end_token_ids": 257}),
        ("special_tokens", {"special_tokens": {"bos_token": 1}}),
        ("tokenizer", {"kind": "huggingface"}),
        ("tokenizer_digest", {"kind": "huggingface", "tokenizer": "{}", "tokenizer_digest": "00"}),
        ("chat_template", {"kind": "huggingface", "tokenizer": "", "tokenizer_digest": "", "chat_template": 3}),
    ],
)
def test_a_bad_field_is_named(field: str, fields: dict[str, Any]) -> None:
    if field == "chat_template":
        fields["tokenizer_digest"] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(CardError) as caught:
        parse_card(make_card(**fields))
    assert caught.value.field == field


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"null"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(CardError):
        parse_card(data)


def test_unknown_fields_are_for_later_readers() -> None:
    assert parse_card(json.dumps(json.loads(make_card()) | {"family": "x", "new": 1}).encode()).kind == "scripted"
