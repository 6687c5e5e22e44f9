"""Every id's bytes add up to the text that the tokenizer itself decodes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace_worker.models.checkpoint import Checkpoint, open_checkpoint
from headrace_worker.models.token_bytes import read_token_bytes
from tests.unit.worker.models.smollm2 import CACHE, fetch_smollm2

CHECKPOINT: Checkpoint = open_checkpoint(str(fetch_smollm2()), CACHE)
TOKENIZER: Tokenizer = Tokenizer.from_str(CHECKPOINT.text.tokenizer_json)
FOUND = read_token_bytes(CHECKPOINT.text.tokenizer_json, CHECKPOINT.config.vocab_size)
assert FOUND is not None
TOKEN_BYTES: list[bytes] = FOUND


@given(text=st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_ids_spell_what_the_tokenizer_decodes(text: str) -> None:
    """Not always the text: this vocabulary has no token for some bytes, and drops them."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    spelled = b"".join(TOKEN_BYTES[token_id] for token_id in ids)
    assert spelled.decode(errors="replace") == TOKENIZER.decode(ids, skip_special_tokens=True)


@given(text=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60))
@settings(max_examples=100, deadline=None)
def test_ids_of_ascii_spell_it(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert b"".join(TOKEN_BYTES[token_id] for token_id in ids) == text.encode()


def test_special_tokens_are_no_text() -> None:
    ids = TOKENIZER.encode("<|im_start|><|im_end|><|endoftext|>", add_special_tokens=False).ids
    assert [TOKEN_BYTES[token_id] for token_id in ids] == [b"", b"", b""]


def sentence_piece(**changes: Any) -> str:
    values: dict[str, Any] = {
        "added_tokens": [
            {"id": 1, "content": "</s>", "special": True},
            {"id": 5, "content": "<tool> é", "special": False},
        ],
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": {"<unk>": 0, "</s>": 1, "<0x0A>": 2, "\u2581a\u2581b": 3, "é": 4}},
    }
    return json.dumps(values | changes)


def test_sentence_piece_spaces_bytes_and_added_tokens() -> None:
    found = read_token_bytes(sentence_piece(), 8)
    assert found == [b"<unk>", b"", b"\n", b" a b", "é".encode(), "<tool> é".encode(), b"", b""]


def test_ids_beyond_the_models_vocabulary_are_left_out() -> None:
    assert read_token_bytes(sentence_piece(), 3) == [b"<unk>", b"", b"\n"]


def test_unigram_pieces_come_in_the_order_of_their_ids() -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["\u2581x", -1.0]]}
    assert read_token_bytes(sentence_piece(model=model, added_tokens=[]), 2) == [b"<unk>", b" x"]


def test_a_tokenizer_of_another_kind_is_not_guessed_at() -> None:
    assert read_token_bytes(sentence_piece(decoder={"type": "WordPiece"}), 8) is None
    assert read_token_bytes(sentence_piece(decoder=None), 8) is None
