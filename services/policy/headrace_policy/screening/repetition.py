"""The same few words, or one character, over and over: a model in a loop, or a caller who wants one.

The match begins where the repeats have become too many, so nothing is held back for it.
"""

from headrace_policy.screening.detector import Scan, Window

MOST_REPEATS = 32
_MOST_PERIOD = 16
_MOST_SAME = 256
_MOST_LETTERS = 64


class Repetition:
    """``values`` may hold one number: how often a phrase of 1 to 16 words may stand in a row (default 32)."""

    def __init__(self, values: tuple[str, ...]) -> None:
        if len(values) > 1 or not all(value.isdecimal() and int(value) >= 2 for value in values):
            raise ValueError("a repetition rule takes at most one value, a number of at least 2")
        self.most_repeats = int(values[0]) if values else MOST_REPEATS

    def open(self) -> "RepetitionCursor":
        return RepetitionCursor(self.most_repeats)


class RepetitionCursor:
    """Counts, for each period, how many words in a row equal the word one period before."""

    def __init__(self, most_repeats: int) -> None:
        self._most_repeats, self._read, self._matched = most_repeats, 0, False
        self._words: list[str] = []
        self._runs = [0] * (_MOST_PERIOD + 1)
        self._word, self._last, self._num_same = "", "", 0

    def scan(self, window: Window) -> Scan:
        matches = []
        for place in range(self._read, window.end):
            if not self._matched and self._too_many(window.text[place - window.base]):
                self._matched = True
                matches.append((place, place + 1))
        self._read = max(self._read, window.end)
        return Scan(matches, self._read)

    def _too_many(self, character: str) -> bool:
        self._num_same = self._num_same + 1 if character == self._last else 1
        self._last = character
        if self._num_same > _MOST_SAME:
            return True
        if not character.isspace():
            self._word += character if len(self._word) < _MOST_LETTERS else ""
            return False
        word, self._word = self._word, ""
        return bool(word) and self._repeats(word)

    def _repeats(self, word: str) -> bool:
        self._words = [*self._words[-_MOST_PERIOD:], word]
        for period in range(1, min(_MOST_PERIOD, len(self._words) - 1) + 1):
            same = self._words[-1 - period] == word
            self._runs[period] = self._runs[period] + 1 if same else 0
            if self._runs[period] >= period * self._most_repeats:
                return True
        return False
