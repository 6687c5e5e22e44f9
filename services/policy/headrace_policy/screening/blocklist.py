"""Words and phrases, found wherever they stand as words. Aho-Corasick over the folded text; linear in its length."""

import re
from dataclasses import dataclass

import ahocorasick

from headrace_policy.screening.detector import Scan, Window
from headrace_policy.screening.normal import bounded, fold, fold_with_places

_SPACES = re.compile(r"\s")


@dataclass(frozen=True)
class Folded:
    """Folded text from one place of a window on; ``places`` lead back to the window, None = one to one."""

    text: str
    places: list[int] | None
    first: int
    """Code points of ``text`` that were scanned before and are only there for word edges."""

    def raw(self, place: int) -> int:
        return place - self.first if self.places is None else self.places[place - self.first]


class Blocklist:
    """Raises ValueError for a word that is nothing once it is folded."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._automaton = ahocorasick.Automaton()
        folded = [_SPACES.sub(" ", fold(word).strip()) for word in words]
        for word, form in zip(words, folded, strict=True):
            if not form:
                raise ValueError(f"{word!r} holds nothing to look for")
            self._automaton.add_word(form, form)
        self._automaton.make_automaton()
        self._firsts, self._longest = {form[0] for form in folded}, max(map(len, folded))

    def open(self) -> "BlocklistCursor":
        return BlocklistCursor(self)

    def find(self, text: str, first: int, final: bool) -> tuple[list[tuple[int, int]], int]:
        """Matches that begin in [first, live), and live: from there on text may still become a match."""
        live = len(text) if final else self._begun(text, first)
        found = []
        for last, word in self._automaton.iter(text, first):
            begin, end = last + 1 - len(word), last + 1
            if _inside_word(text, begin):
                continue
            if end == len(text) and bounded(word[-1]) and not final:
                live = min(live, begin)  # the next character decides whether the word ends here
            elif not (end < len(text) and bounded(word[-1]) and bounded(text[end])):
                found.append((begin, end))
        return [match for match in found if match[0] < live], live

    def _begun(self, text: str, first: int) -> int:
        for place in range(max(first, len(text) - self._longest), len(text)):
            if text[place] not in self._firsts or _inside_word(text, place):
                continue
            if self._automaton.match(text[place:]):
                return place
        return len(text)


class BlocklistCursor:
    def __init__(self, blocklist: Blocklist) -> None:
        self._blocklist, self._clear_to = blocklist, 0
        self._before = ""
        """The last folded code point before ``clear_to``: invisible ones may stand between."""

    def scan(self, window: Window) -> Scan:
        start = self._clear_to
        text, places = fold_with_places(window.text[start - window.base :])
        folded = Folded(self._before + _SPACES.sub(" ", text), places, len(self._before))
        found, live = self._blocklist.find(folded.text, folded.first, window.final)
        matches = [(start + folded.raw(begin), start + folded.raw(end - 1) + 1) for begin, end in found]
        self._clear_to = window.end if live >= len(folded.text) else start + folded.raw(live)
        self._before = folded.text[live - 1] if live else ""
        return Scan(matches, self._clear_to)


def _inside_word(text: str, place: int) -> bool:
    return bool(place) and bounded(text[place]) and bounded(text[place - 1])
