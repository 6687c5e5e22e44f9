"""Incremental detokenizing: whole characters, whatever the split, and the same text as one-shot decoding."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from headrace_gateway.text.card import ModelCard
from headrace_gateway.text.detokenizer import Detokenizer, decode
from headrace_gateway.text.token_bytes import ScriptedBytes
from headrace_gateway.text.tokenizer import Tokenizer as OurTokenizer
from headrace_gateway.text.tokenizer import load_tokenizer
from headrace_kit.errors import HeadraceError

from .toy_models import byte_level, metaspace, scripted, sentencepiece

EMOJI = b"\xf0\x9f\x98\x80!"


def deltas(token_ids: list[int], pieces: tuple[bytes, ...] = ()) -> list[str]:
    """What each token of the scripted tokenizer lets out, and the end; empty texts left out."""
    detokenizer = Detokenizer(ScriptedBytes(pieces))
    return [text for text in [*map(detokenizer.feed, token_ids), detokenizer.finish()] if text]


def test_four_bytes_of_an_emoji_are_one_delta() -> None:  # B09
    assert deltas(list(EMOJI)) == ["\U0001f600", "!"]


def test_an_emoji_split_between_two_byte_tokens_is_whole() -> None:  # B09, the split that broke llama.cpp
    assert deltas([260, 261, 262], (b"\xf0\x9f", b"\x98\x80", b"!")) == ["\U0001f600", "!"]


@given(st.text(), st.data())
def test_any_split_of_any_text_gives_whole_characters(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))))
    pieces = tuple(raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True))
    parts = deltas([260 + number for number in range(len(pieces))], pieces)
    assert "".join(parts) == text


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_any_bytes_read_the_same_in_one_shot(pieces: list[bytes]) -> None:
    ids = [260 + number for number in range(len(pieces))]
    assert "".join(deltas(ids, tuple(pieces))) == b"".join(pieces).decode("utf-8", "replace")


def test_a_disproved_character_is_replaced_at_once() -> None:
    assert deltas([0xF0, 0x9F, 0x41]) == ["\ufffdA"]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    assert deltas([0x41, 0xF0, 0x9F]) == ["A", "\ufffd"]


def test_control_ids_are_never_visible() -> None:  # B18
    assert deltas([256, 111, 107, 259, 10, 258, 257]) == ["o", "k", "\n"]


@pytest.mark.parametrize("token_id", [260, -1, 1 << 31])
def test_an_id_that_is_no_token_is_a_typed_fault(token_id: int) -> None:  # B11
    with pytest.raises(HeadraceError) as caught:
        Detokenizer(ScriptedBytes()).feed(token_id)
    assert caught.value.reason == "decode_error"


def test_a_fault_leaves_other_detokenizers_alone() -> None:  # B11
    tokens = load_tokenizer(byte_level())
    one, two = tokens.detokenizer(), tokens.detokenizer()
    ids = tokens.encode_raw("naïve café 😀")
    before = [one.feed(token_id) for token_id in ids[:3]]
    with pytest.raises(HeadraceError):
        two.feed(10**6)
    assert "".join(before + [one.feed(token_id) for token_id in ids[3:]]) + one.finish() == "naïve café 😀"


@cache
def both(name: str) -> tuple[Tokenizer, OurTokenizer]:
    """The library's own and ours of one toy model."""
    card = {"byte_level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}[name]()
    assert card.tokenizer_json is not None
    return Tokenizer.from_str(card.tokenizer_json), load_tokenizer(card)


def streamed(tokenizer: OurTokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([detokenizer.feed(token_id) for token_id in ids]) + detokenizer.finish()


@given(st.data())
def test_byte_level_streams_what_the_library_decodes(data: st.DataObject) -> None:
    library, ours = both("byte_level")
    ids = data.draw(st.lists(st.integers(0, library.get_vocab_size() - 1), max_size=30))
    assert streamed(ours, ids) == library.decode(ids)


@given(st.text(alphabet=st.sampled_from("Hello wrd😀日é\n "), max_size=30))
def test_sentencepiece_streams_what_the_library_decodes(text: str) -> None:
    library, ours = both("sentencepiece")
    ids = library.encode(text).ids
    assert streamed(ours, ids) == library.decode(ids)


@given(st.lists(st.integers(0, 12), max_size=12))
def test_metaspace_streams_what_the_library_decodes(ids: list[int]) -> None:
    library, ours = both("metaspace")
    assert streamed(ours, ids) == library.decode(ids)


@pytest.mark.parametrize("card", [sentencepiece(), metaspace()], ids=["byte-fallback", "metaspace"])
def test_words_do_not_run_together(card: ModelCard) -> None:  # B16
    tokens = load_tokenizer(card)
    ids = [token_id for token_id in tokens.encode_raw("Hello world") if token_id > 2]
    detokenizer = tokens.detokenizer()
    parts = [text for text in map(detokenizer.feed, ids) if text]
    assert "".join(parts) == "Hello world" == tokens.decode(ids)
    assert len(parts) > 1


def test_a_continued_text_keeps_its_leading_space() -> None:
    tokens = load_tokenizer(sentencepiece())
    ids = [token_id for token_id in tokens.encode_raw("world") if token_id > 2]
    detokenizer = tokens.detokenizer(continues_text=True)
    assert "".join(map(detokenizer.feed, ids)) == " world"


def test_cost_does_not_grow_with_the_text() -> None:
    """No token is decoded twice: what is kept is at most an unfinished character."""
    detokenizer = load_tokenizer(scripted()).detokenizer()
    for token_id in [*EMOJI[:4]] * 1000 + [0xF0, 0x9F, 0x98]:
        detokenizer.feed(token_id)
        assert len(detokenizer._tail) <= 3


def test_every_byte_of_the_byte_level_alphabet_round_trips() -> None:
    tokens = load_tokenizer(byte_level())
    vocab = json.loads(byte_level().tokenizer_json or "")["model"]["vocab"]
    singles = {tokens.token_bytes(number) for piece, number in vocab.items() if len(piece) == 1}
    assert singles == {bytes((byte,)) for byte in range(256)}


def test_one_shot_decode_of_the_scripted_pieces() -> None:
    assert decode(ScriptedBytes((b"Hel", b"lo")), [260, 261, 257]) == "Hello"
