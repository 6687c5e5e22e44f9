"""Strings that end a text: found across any boundary, never leaked, and nothing else held back.

An Aho-Corasick automaton (Aho and Corasick, 1975) over code points: its state is the longest suffix of the text that is
a prefix of some stop, which is exactly what must be held back. The earliest stop is the one completed first; of several
completed by the same character, the longest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

MAX_STOPS = 16


class StopStrings:
    """The automaton of a request's stops; shared by its choices and never changed."""

    __slots__ = ("_depth", "_fail", "_first", "_match", "_next")

    def __init__(self, stops: Iterable[str]) -> None:
        stops = tuple(dict.fromkeys(stops))
        assert 0 < len(stops) <= MAX_STOPS and all(stops), "1 to 16 stops, none empty"
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]
        for stop in stops:
            self._match[self._add(stop)] = len(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._first = re.compile("[" + "".join(re.escape(first) for first in self._next[0]) + "]")

    def _add(self, stop: str) -> int:
        state = 0
        for character in stop:
            following = self._next[state].get(character)
            if following is None:
                following = len(self._next)
                self._next[state][character] = following
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = following
        return state

    def _link(self) -> None:
        """Failure links breadth first; a state matches the longest stop that ends in it."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self._match[state] = self._match[state] or self._match[self._fail[state]]
            for character, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], character)
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character; constant time on average."""
        following = self._next[state].get(character)
        while following is None and state:
            state = self._fail[state]
            following = self._next[state].get(character)
        return following or 0

    def scan(self, state: int, text: str) -> tuple[int, int, int]:
        """Read `text`: (new state, characters read, length of the completed stop or 0). Stops at a completed stop."""
        position = 0
        while position < len(text):
            if state == 0:
                found = self._first.search(text, position)
                if found is None:
                    return 0, len(text), 0
                position = found.start()
            state = self.step(state, text[position])
            position += 1
            if self._match[state]:
                return state, position, self._match[state]
        return state, position, 0

    def depth(self, state: int) -> int:
        """How many characters of the text so far could begin a stop."""
        return self._depth[state]


class StopFilter:
    """One choice's text on its way through the stops; `matched` is the stop that ended it."""

    __slots__ = ("_held", "_state", "_stops", "matched", "stopped")

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""
        self.matched = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may be shown now; once `stopped`, nothing more ever may."""
        if self.stopped:
            return ""
        self._state, num_read, num_matched = self._stops.scan(self._state, text)
        if num_matched:
            self.stopped = True
            whole = self._held + text[:num_read]
            self._held = ""
            self.matched = whole[-num_matched:]
            return whole[:-num_matched]
        if self._state == 0 and not self._held:
            return text
        whole = self._held + text
        num_free = len(whole) - self._stops.depth(self._state)
        self._held = whole[num_free:]
        return whole[:num_free]

    def finish(self) -> str:
        """The end disproves whatever was held."""
        text, self._held = self._held, ""
        return text
