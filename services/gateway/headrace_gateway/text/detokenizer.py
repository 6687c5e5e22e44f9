"""Token ids to text, one at a time: never splits a character, and never decodes a token twice.

The text of a response is the UTF-8 decoding of all its tokens' bytes. An incomplete tail is held back until it is
complete, or disproved, which yields U+FFFD as the Unicode standard recommends (maximal subparts, as WHATWG's decoder).
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from headrace_gateway.text.token_bytes import LeadingSpace, TokenBytes
from headrace_kit.errors import HeadraceError


class Detokenizer:
    """The text of one choice so far. `continues_text`: the output continues raw text, so leading spaces are its own."""

    __slots__ = ("_strip", "_tail", "_tokens")

    def __init__(self, tokens: TokenBytes, continues_text: bool = False) -> None:
        self._tokens = tokens
        self._tail = b""
        self._strip = LeadingSpace.KEEP if continues_text else tokens.leading_space

    @property
    def is_incomplete(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return self._tail != b""

    def feed(self, token_id: int) -> str:
        """Text that this token completes, possibly ""; raises HeadraceError decode_error for an id that is no token."""
        data = self._tokens[token_id]
        if self._strip is not LeadingSpace.KEEP and data:
            data = self._stripped(data)
        if self._tail:
            data = self._tail + data
        text, num_read = utf_8_decode(data, "replace", False)
        self._tail = data[num_read:]
        return text

    def feed_whole(self, token_ids: Sequence[int]) -> str | None:
        """The same for several at once; None, and none is taken, if one is no token or they end within a character."""
        if self._tail or self._strip is not LeadingSpace.KEEP:
            return None
        tokens = self._tokens
        try:
            data = b"".join([tokens[token_id] for token_id in token_ids])
        except HeadraceError:
            return None
        text, num_read = utf_8_decode(data, "replace", False)
        return text if num_read == len(data) else None

    def finish(self) -> str:
        """The end: an incomplete tail becomes U+FFFD."""
        text, _ = utf_8_decode(self._tail, "replace", True)
        self._tail = b""
        return text

    def _stripped(self, data: bytes) -> bytes:
        """The first visible token, without the space that only marks the start of a word."""
        once = self._strip is LeadingSpace.STRIP_ONE
        self._strip = LeadingSpace.KEEP
        return data.removeprefix(b" ") if once else data.lstrip(b" ")


def decode(tokens: TokenBytes, token_ids: list[int], continues_text: bool = False) -> str:
    """One-shot decoding: the same text that a stream of the same ids gives."""
    detokenizer = Detokenizer(tokens, continues_text)
    return "".join([detokenizer.feed(token_id) for token_id in token_ids]) + detokenizer.finish()
