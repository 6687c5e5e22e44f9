"""Text to token ids, for the two kinds of tokenizer behind one port.

A rendered chat prompt mixes control markers written by the template with text written by people. Only the former may
become control tokens, so a prompt arrives as spans (see `chat_template`): markers and text. Knows no template.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from tokenizers import Tokenizer as FastTokenizer

from headrace_gateway.text.card import SCRIPTED, CardError, ModelCard
from headrace_gateway.text.detokenizer import Detokenizer, decode
from headrace_gateway.text.token_bytes import ScriptedBytes, TokenBytes, read_vocabulary


class Span(NamedTuple):
    """Part of a rendered prompt: a control token's marker that the template wrote, or any other text."""

    text: str
    is_marker: bool


class Tokenizer(Protocol):
    """What a gateway asks of a model's tokenizer. Encoding may take long: call it in a thread."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of the control tokens."""
        ...

    def encode_prompt(self, spans: Sequence[Span]) -> list[int]:
        """Ids of a rendered chat prompt; only `Span.is_marker` spans become control tokens."""
        ...

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a raw completion prompt, with whatever the tokenizer puts before a text (one BOS at most)."""
        ...

    def detokenizer(self, pieces: Sequence[bytes] = (), continues_text: bool = False) -> Detokenizer:
        """A fresh incremental detokenizer; `pieces` is the table that `accepted` carried (scripted engine)."""
        ...

    def token_bytes(self, token_id: int, pieces: Sequence[bytes] = ()) -> bytes:
        """The bytes of one token, for log-probabilities; a control token shows its marker."""
        ...

    def decode(self, token_ids: list[int], pieces: Sequence[bytes] = ()) -> str:
        """One-shot text of ids."""
        ...


def load_tokenizer(card: ModelCard) -> Tokenizer:
    """The tokenizer that a card describes; raises CardError."""
    if card.kind == SCRIPTED:
        return ScriptedTokenizer()
    assert card.tokenizer_json is not None, "parse_card lets no such card through"
    return HuggingFaceTokenizer(card.tokenizer_json, card.end_token_ids)


class ScriptedTokenizer:
    """The byte-level tokenizer of the scripted engine."""

    markers = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
    BOS = 256

    def encode_prompt(self, spans: Sequence[Span]) -> list[int]:
        ids: list[int] = []
        for text, is_marker in spans:
            if is_marker:
                ids.append(self.BOS + self.markers.index(text))
            else:
                ids += text.encode()
        return ids

    def encode_raw(self, text: str) -> list[int]:
        return [self.BOS, *text.encode()]

    def detokenizer(self, pieces: Sequence[bytes] = (), continues_text: bool = False) -> Detokenizer:
        return Detokenizer(ScriptedBytes(pieces), continues_text)

    def token_bytes(self, token_id: int, pieces: Sequence[bytes] = ()) -> bytes:
        if self.BOS <= token_id < self.BOS + len(self.markers):
            return self.markers[token_id - self.BOS].encode()
        return ScriptedBytes(pieces)[token_id]

    def decode(self, token_ids: list[int], pieces: Sequence[bytes] = ()) -> str:
        return decode(ScriptedBytes(pieces), token_ids)


class HuggingFaceTokenizer:
    """A tokenizer.json. Chat prompts go through a twin whose control tokens have unguessable names.

    In the twin a marker typed by a person is ordinary text, whatever surrounds it, and everything else (normalizer,
    pre-tokenizer, merges across spans, ids) is the library's own doing on one whole text.
    """

    def __init__(self, tokenizer_json: str, end_token_ids: frozenset[int]) -> None:
        with _LibraryErrors():
            self._plain: Any = FastTokenizer.from_str(tokenizer_json)
        self._plain.no_truncation()
        self._plain.no_padding()
        values = json.loads(tokenizer_json)
        special = {entry["content"]: entry["id"] for entry in values.get("added_tokens") or [] if entry.get("special")}
        self.markers = tuple(special)
        self._special_ids = frozenset(special.values())
        self._visible: TokenBytes = read_vocabulary(values, self._special_ids | end_token_ids)
        self._all: TokenBytes = read_vocabulary(values, ())
        nonce = secrets.token_hex(12)
        self._names = {marker: f"\ue000{nonce}.{number}\ue001" for marker, number in special.items()}
        with _LibraryErrors():
            self._twin: Any = FastTokenizer.from_str(json.dumps(_renamed(values, self._names)))
        self._twin.no_truncation()
        self._twin.no_padding()
        for marker, number in special.items():
            if self._encode_twin(self._names[marker]) != [number]:
                raise CardError("tokenizer.added_tokens", f"{marker!r} does not encode to its id {number}")

    def _encode_twin(self, text: str) -> list[int]:
        return list(self._twin.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, spans: Sequence[Span]) -> list[int]:
        return self._encode_twin("".join(self._names[span.text] if span.is_marker else span.text for span in spans))

    def encode_raw(self, text: str) -> list[int]:
        ids = list(self._plain.encode(text).ids)
        # The text may begin with the marker that the tokenizer adds by itself: exactly one is right.
        twice = len(ids) > 1 and ids[0] == ids[1] and ids[0] in self._special_ids
        return ids[1:] if twice else ids

    def detokenizer(self, pieces: Sequence[bytes] = (), continues_text: bool = False) -> Detokenizer:
        return Detokenizer(self._visible, continues_text)

    def token_bytes(self, token_id: int, pieces: Sequence[bytes] = ()) -> bytes:
        return self._all[token_id]

    def decode(self, token_ids: list[int], pieces: Sequence[bytes] = ()) -> str:
        return decode(self._visible, token_ids)


class _LibraryErrors:
    """The tokenizers library raises the bare class Exception for a malformed file: exactly that becomes a CardError."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is Exception:
            raise CardError("tokenizer", f"is not a tokenizer.json: {error}") from None


def _renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The same tokenizer with its special tokens called otherwise; ids stay."""
    model = dict(values["model"])
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [
        {**entry, "content": names[entry["content"]]} if entry.get("special") else entry
        for entry in values.get("added_tokens") or []
    ]
    return {**values, "model": model, "added_tokens": added, "post_processor": None}
