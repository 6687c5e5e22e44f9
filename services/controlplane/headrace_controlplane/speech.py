"""Whether two revisions of a model read and write tokens alike, by their cards. Pure. Knows no revision.

A gateway makes tokens with one revision's card; another revision may serve them only if it would have made the same.
"""

import hashlib
import json
from collections.abc import Callable

_SAYS_NOTHING = ("fingerprint", "revision", "family")


def digest(card: bytes | None) -> bytes:
    """Equal for cards that differ in their weights alone; empty if there is no card."""
    if not card:
        return b""
    try:
        fields = json.loads(card)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        return hashlib.sha256(card).digest()
    telling = {name: value for name, value in fields.items() if name not in _SAYS_NOTHING}
    return hashlib.sha256(json.dumps(telling, sort_keys=True).encode()).digest()


class Speeches:
    """`digest` of the cards in a store, each read once; called with a card's digest."""

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._known: dict[bytes, bytes] = {}

    def __call__(self, card_digest: bytes) -> bytes:
        if card_digest not in self._known:
            found = digest(self._read(card_digest)) if card_digest else b""
            if not found:
                return b""
            self._known[card_digest] = found
        return self._known[card_digest]
