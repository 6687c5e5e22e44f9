"""A form of text in which look-alikes are alike: compatibility forms, case, accents and invisible characters are gone.

Each code point is folded by itself, so that text can be folded piece by piece and positions can be led back.
"""

import unicodedata
from functools import lru_cache

_DROPPED = ("Mn", "Me", "Cf")


@lru_cache(maxsize=65_536)
def fold_one(character: str) -> str:
    """Zero or more code points. NFKD, case-folded, without marks and format characters."""
    wide = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(c for c in wide if unicodedata.category(c) not in _DROPPED)


def fold(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(fold_one, text))


def fold_with_places(text: str) -> tuple[str, list[int] | None]:
    """The folded text, and for each of its code points the one of ``text`` that it came from; None = the same."""
    if text.isascii():
        return text.lower(), None
    folded, places = [], []
    for i, character in enumerate(text):
        piece = fold_one(character)
        folded.append(piece)
        places.extend([i] * len(piece))
    return "".join(folded), places


def bounded(character: str) -> bool:
    """Whether a word that ends in this folded character must end at a word's edge; scripts without spaces need not."""
    return character.isalnum() and ord(character) < 0x2E80
