"""Windows of one text that guards judge: when one is asked about, with what, and how far the text is clear.

A window begins with the first code point that nobody was asked about. It ends when it is full, when the text ends, or
a little after it began: that timer keeps a slow stream from being held for ever. Pure: the clock is an argument.
"""

from dataclasses import dataclass

WINDOW_S = 0.25
MOST = 4000
"""Code points of one question: the window, and of what came before it as much as there is room for."""


@dataclass(frozen=True)
class Question:
    """``text`` ends at code point ``end`` of the whole."""

    text: str
    end: int


class Windows:
    """One question at a time; ``cleared`` counts code points from the start of the text."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._tail = ""
        self._began: float | None = None
        self._final = False
        self.received = self.asked = self.cleared = 0

    def feed(self, text: str, final: bool, now: float) -> None:
        if text and self._began is None:
            self._began = now
        self.received += len(text)
        self._final = self._final or final
        self._tail = (self._tail + text)[-(MOST + self.received - self.asked) :]

    @property
    def num_waiting(self) -> int:
        """Code points that nobody was asked about."""
        return self.received - self.asked

    def due_in(self, now: float) -> float | None:
        """Seconds until a question is due; None while everything was asked about."""
        if self._began is None:
            return None
        if self._final or self.num_waiting >= MOST:
            return 0.0
        return max(0.0, self._began + self._window_s - now)

    def question(self, now: float) -> Question:
        """The next window, with what came before it; the one after it begins now."""
        end = min(self.received, self.asked + MOST)
        rest = self.received - end
        self.asked, self._began = end, now if rest else None
        until = len(self._tail) - rest
        return Question(self._tail[max(0, until - MOST) : until], end)

    def clear(self, question: Question) -> None:
        self.cleared = question.end
