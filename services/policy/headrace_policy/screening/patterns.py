"""Regular expressions in linear time (RE2), some with a check of what they found. Knows no entity."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import re2

from headrace_policy.screening.detector import Scan, Window
from headrace_policy.screening.prefixes import translate


@dataclass(frozen=True)
class Pattern:
    """``check`` decides about the text of a match, such as by a checksum."""

    text: str
    check: Callable[[str], bool] | None = None


class Patterns:
    """Raises ValueError naming the pattern that cannot be used."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._any = re2.Set.SearchSet(_options())
        self.searches: list[tuple[Any, Any, Callable[[str], bool] | None]] = []
        for pattern in patterns:
            try:
                whole, beginnings = translate(pattern.text)
                compiled = re2.compile(whole, _options()), re2.compile(f"(?:{beginnings})\\z", _options())
                self._any.Add(f"(?:{whole})|(?:{beginnings})\\z")
            except (ValueError, re2.error) as error:
                reason = error.args[0].decode() if isinstance(error, re2.error) else str(error)
                raise ValueError(f"{pattern.text!r}: {reason}") from error
            self.searches.append((*compiled, pattern.check))
        self._any.Add("")  # always there: its absence means that the set ran out of memory
        self._any.Compile()

    def open(self) -> "PatternsCursor":
        return PatternsCursor(self)

    def alive(self, text: str) -> Iterable[int]:
        """Which patterns have a match, or the beginning of one, in ``text``: one pass for all of them."""
        hits: list[int] | None = self._any.Match(text)
        return range(len(self.searches)) if hits is None else hits


class PatternsCursor:
    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._clear_to = [0] * len(patterns.searches)

    def scan(self, window: Window) -> Scan:
        matches: list[tuple[int, int]] = []
        first = max(0, min(self._clear_to) - window.base - 1)
        alive = set(self._patterns.alive(window.text[first:]))
        for i, place in enumerate(self._clear_to):
            if i in alive:
                self._clear_to[i] = self._look(i, window, place, matches)
            else:
                self._clear_to[i] = max(place, window.end)
        return Scan(matches, min(self._clear_to))

    def _look(self, i: int, window: Window, place: int, matches: list[tuple[int, int]]) -> int:
        """Takes every match that begins before the first place from which more text could still make one."""
        whole, beginnings, check = self._patterns.searches[i]
        text, position = window.text, place - window.base
        while True:
            begun = None if window.final else beginnings.search(text, position)
            live = len(text) if begun is None else begun.start()
            found = whole.search(text, position)
            if found is None or (found.start() >= live and not window.final):
                return window.base + max(live, position)
            if check is None or check(found.group()):
                matches.append((window.base + found.start(), window.base + found.end()))
            position = found.end()


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    return options
