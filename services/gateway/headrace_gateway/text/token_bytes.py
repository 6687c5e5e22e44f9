"""What bytes each token id stands for, for every kind of tokenizer we serve.

A text is the UTF-8 decoding of its tokens' bytes, so an incremental detokenizer needs nothing else. Knows the decoders
of the `tokenizers` library that are such a map: byte-level BPE, and SentencePiece-style pieces (with or without byte
fallback). A decoder that looks at its neighbours otherwise is refused when the card is read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any, Protocol

from headrace_gateway.text.card import CardError
from headrace_kit.errors import HeadraceError

WORD_START = "\u2581"


class LeadingSpace(Enum):
    """What becomes of spaces at the start of a text."""

    KEEP = 0
    STRIP_ONE = 1
    STRIP_FIRST_TOKEN = 2


class TokenBytes(Protocol):
    """Bytes by id; two kinds: the table of a model's vocabulary, and the scripted engine's."""

    leading_space: LeadingSpace

    def __getitem__(self, token_id: int) -> bytes:
        """Bytes of a token, empty for one that is never visible; raises HeadraceError decode_error for no token."""
        ...


class VocabularyBytes:
    """Ids of a tokenizer.json. `hidden` ids (special tokens, end tokens) are never visible."""

    def __init__(self, pieces: Sequence[bytes | None], hidden: Collection[int], leading_space: LeadingSpace) -> None:
        self.leading_space = leading_space
        self._pieces = [b"" if number in hidden else piece for number, piece in enumerate(pieces)]

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None
        if piece is None:
            raise HeadraceError("decode_error", f"token id {token_id} is not in the model's vocabulary")
        return piece


class ScriptedBytes:
    """Ids of the scripted engine: bytes, four specials that are never visible, then the pieces of one response."""

    NUM_BYTES, VOCAB_SIZE = 256, 260
    leading_space = LeadingSpace.KEEP

    def __init__(self, pieces: Sequence[bytes] = ()) -> None:
        self._table = [*_SCRIPTED, *pieces]

    def __getitem__(self, token_id: int) -> bytes:
        if 0 <= token_id < len(self._table):
            return self._table[token_id]
        raise HeadraceError("decode_error", f"token id {token_id} is neither a byte nor a piece of this response")


_SCRIPTED = [*(bytes((byte,)) for byte in range(ScriptedBytes.NUM_BYTES)), *([b""] * 4)]


def read_vocabulary(tokenizer: dict[str, Any], hidden: Collection[int]) -> VocabularyBytes:
    """The table of a tokenizer.json; raises CardError if its decoder is no map from ids to bytes."""
    steps = _decoder_steps(tokenizer)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return VocabularyBytes(_pieces(tokenizer, _byte_level), hidden, LeadingSpace.KEEP)
    if "Metaspace" in kinds and set(kinds) <= {"Metaspace", "ByteFallback", "Fuse"}:
        prepends = steps[kinds.index("Metaspace")].get("prepend_scheme", "always") != "never"
        space = LeadingSpace.STRIP_FIRST_TOKEN if prepends else LeadingSpace.KEEP
    elif "Replace" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        space = _check_sentencepiece(steps)
    else:
        raise CardError("tokenizer.decoder", f"of kind {kinds} is not supported")
    to_bytes = _sentencepiece_with_bytes if "ByteFallback" in kinds else _sentencepiece
    return VocabularyBytes(_pieces(tokenizer, to_bytes), hidden, space)


def _decoder_steps(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    decoder = tokenizer.get("decoder")
    if not isinstance(decoder, dict):
        raise CardError("tokenizer.decoder", "is missing")
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _check_sentencepiece(steps: list[dict[str, Any]]) -> LeadingSpace:
    space = LeadingSpace.KEEP
    for step in steps:
        if step["type"] == "Replace" and (step.get("pattern"), step.get("content")) != ({"String": WORD_START}, " "):
            raise CardError("tokenizer.decoder", f"replaces other than {WORD_START} by a space")
        if step["type"] == "Strip":
            if (step.get("content"), step.get("start"), step.get("stop")) not in ((" ", 1, 0), (" ", 0, 0)):
                raise CardError("tokenizer.decoder", "strips other than one leading space")
            space = LeadingSpace.STRIP_ONE if step["start"] else LeadingSpace.KEEP
    return space


def _pieces(tokenizer: dict[str, Any], to_bytes: Any) -> list[bytes | None]:
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):
        by_id = {number: entry[0] for number, entry in enumerate(vocab)}
    elif isinstance(vocab, dict):
        by_id = {number: piece for piece, number in vocab.items()}
    else:
        raise CardError("tokenizer.model.vocab", "is missing")
    added = {entry["id"]: entry["content"] for entry in tokenizer.get("added_tokens") or []}
    pieces: list[bytes | None] = [None] * (max((*by_id, *added), default=-1) + 1)
    for number, piece in by_id.items():
        pieces[number] = to_bytes(piece)
    for number, content in added.items():
        pieces[number] = to_bytes(content)
    return pieces


def byte_alphabet() -> dict[str, int]:
    """GPT-2's map from the printable characters that stand for bytes to those bytes (openai/gpt-2 encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(piece: str) -> bytes:
    """A piece outside the alphabet (an added token with a space in it) stands for its own UTF-8."""
    mapped = [_ALPHABET.get(character) for character in piece]
    known = [byte for byte in mapped if byte is not None]
    return bytes(known) if len(known) == len(mapped) else piece.encode()


def _sentencepiece(piece: str) -> bytes:
    return piece.replace(WORD_START, " ").encode()


def _sentencepiece_with_bytes(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes((int(piece[3:5], 16),))
        except ValueError:
            return piece.encode()
    return _sentencepiece(piece)
