"""What each id of a vocabulary adds to the text, as bytes: a grammar is about text, a model draws ids.

Byte-level BPE spells bytes with 256 printable characters (Radford et al., "GPT-2", 2019); SentencePiece models write
spaces as U+2581 and odd bytes as <0xNN>. Knows no grammar.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>\Z")


def _byte_of_character() -> dict[str, int]:
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(others)}


_ALPHABET = _byte_of_character()


def read_token_bytes(tokenizer_json: str, vocab_size: int) -> list[bytes] | None:
    """Bytes per id, of the `tokenizers` library's format. None for a kind of tokenizer that is not known here.

    Empty for ids that are no text: special tokens, and those beyond the tokenizer's own vocabulary.
    """
    tokenizer = json.loads(tokenizer_json)
    style = _style(tokenizer)
    pieces = _pieces(tokenizer["model"])
    if style is None or pieces is None:
        return None
    spell = _byte_level if style == "ByteLevel" else _sentence_piece
    found = [b""] * vocab_size
    for piece, number in pieces:
        if number < vocab_size:
            found[number] = spell(piece)
    for entry in tokenizer.get("added_tokens") or ():
        if entry["id"] < vocab_size:
            found[entry["id"]] = b"" if entry.get("special") else entry["content"].encode()
    return found


def _style(tokenizer: dict[str, Any]) -> str | None:
    """ByteLevel or ByteFallback, whichever the decoder says."""
    decoder = tokenizer.get("decoder") or {}
    kinds = {step["type"] for step in decoder.get("decoders") or [decoder] if "type" in step}
    return next((kind for kind in ("ByteLevel", "ByteFallback") if kind in kinds), None)


def _pieces(model: dict[str, Any]) -> Iterator[tuple[str, int]] | None:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return iter(vocabulary.items())
    if isinstance(vocabulary, list):  # Unigram: (piece, score) in the order of ids
        return ((piece, number) for number, (piece, _) in enumerate(vocabulary))
    return None


def _byte_level(piece: str) -> bytes:
    spelled = [_ALPHABET.get(character) for character in piece]
    known = [byte for byte in spelled if byte is not None]
    return bytes(known) if len(known) == len(spelled) else piece.encode()


def _sentence_piece(piece: str) -> bytes:
    byte = _BYTE_PIECE.match(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("\u2581", " ").encode()
