"""Tokenizers behind one port: what comes before raw text, and what is shown of a token."""

from __future__ import annotations

import json

import pytest

from headrace_gateway.text.card import CardError
from headrace_gateway.text.tokenizer import HuggingFaceTokenizer, load_tokenizer

from .toy_models import byte_level, scripted, sentencepiece


def test_raw_text_gets_exactly_one_bos() -> None:  # B136
    tokens = load_tokenizer(sentencepiece())
    assert tokens.encode_raw("Hello")[0] == 1
    assert tokens.encode_raw("<s>Hello").count(1) == 1


def test_raw_text_of_a_tokenizer_without_bos_gets_none() -> None:
    assert not {0, 1, 2} & set(load_tokenizer(byte_level()).encode_raw("Hello"))


def test_end_tokens_and_special_tokens_are_hidden_and_added_words_are_not() -> None:  # B18
    tokens = load_tokenizer(byte_level())
    ids = tokens.encode_raw("<think>two words<|im_end|>Hello<|im_start|>")
    assert tokens.decode(ids) == "<think>two wordsHello"


def test_the_bytes_of_a_token_for_log_probabilities() -> None:
    assert load_tokenizer(scripted()).token_bytes(259) == b"<|im_end|>"
    assert load_tokenizer(scripted()).token_bytes(261, (b"a", b"\xf0\x9f")) == b"\xf0\x9f"
    assert load_tokenizer(byte_level()).token_bytes(2) == b"<|im_end|>"


def test_long_text_is_never_truncated() -> None:
    tokens = load_tokenizer(byte_level())
    assert tokens.decode(tokens.encode_raw("Hello world\n" * 5000)) == "Hello world\n" * 5000


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"version": "1.0"}'])
def test_a_malformed_tokenizer_is_a_bad_card(text: str) -> None:
    with pytest.raises(CardError, match="tokenizer"):
        HuggingFaceTokenizer(text, frozenset())


def test_a_decoder_that_is_no_map_of_bytes_is_refused() -> None:
    values = json.loads(byte_level().tokenizer_json or "")
    values["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(CardError, match=r"tokenizer\.decoder"):
        HuggingFaceTokenizer(json.dumps(values), frozenset())
