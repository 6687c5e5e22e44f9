"""Text of one choice on its way out: what may go, what is held, what is replaced, and where it ends.

Text is released up to the first place from which some rule could still find something. A match is acted on when no
match before it is possible any more, in the order of the text: so the outcome depends on the text and never on how it
was cut into deltas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_policy.screening.detector import Window
from headrace_policy.screening.rule import Rule


@dataclass(frozen=True, order=True)
class Finding:
    """One match of one rule; offsets in code points of the whole text."""

    start: int
    end: int
    rule: int


@dataclass(frozen=True)
class Replaced:
    """Text that a client sees instead."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True)
class Decision:
    """``released_up_to`` from the start of the text; ``replaced`` within what is newly released.

    ``verdict``: empty so far, passed (the whole text), flagged or blocked (nothing more is released).
    """

    released_up_to: int
    verdict: str = ""
    rule: str = ""
    replaced: tuple[Replaced, ...] = field(default=())


class Screener:
    """One text under the rules that read its side; guard rules are not for it."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [rule.definition for rule in rules]
        self._cursors = [rule.detector.open() for rule in rules if rule.detector is not None]
        assert len(self._cursors) == len(self._rules), "a guard rule reads no text by itself"
        self._clear_to = [0] * len(rules)
        self._text, self._base, self._released = "", 0, 0
        self._found: list[Finding] = []
        self._flagged, self._blocked = "", ""

    @property
    def received(self) -> int:
        """Code points so far."""
        return self._base + len(self._text)

    def feed(self, text: str, final: bool) -> Decision:
        """More text, and whether it is the last; after a block nothing changes any more."""
        if self._blocked:
            return Decision(self._released, "blocked", self._blocked)
        self._text += text
        window = Window(self._text, self._base, final)
        for i, cursor in enumerate(self._cursors):
            scan = cursor.scan(window)
            self._clear_to[i] = scan.clear_to
            self._found.extend(Finding(start, end, i) for start, end in scan.matches)
        clear_to = min((window.end, *self._clear_to))
        decision = self._decide(clear_to, final)
        self._trim(decision.released_up_to, clear_to)
        return decision

    def _decide(self, clear_to: int, final: bool) -> Decision:
        certain = sorted(one for one in self._found if one.start < clear_to)
        block = next((one for one in certain if self._rules[one.rule].action == "block"), None)
        limit = clear_to if block is None else block.start
        replaced = []
        for span in self._spans(certain):
            if span.start >= limit:
                break
            if span.end > limit:  # undecided, or cut by a block: it goes as a whole or not at all
                limit = span.start
                break
            replaced.append(span)
        limit = max(limit, self._released)
        new = tuple(span for span in replaced if span.start >= self._released)
        self._flag(certain, limit)
        self._released = limit
        if block is not None:
            self._blocked = self._rules[block.rule].name
            return Decision(limit, "blocked", self._blocked, new)
        verdict = "flagged" if self._flagged else "passed" if final else ""
        return Decision(limit, verdict, self._flagged, new)

    def _spans(self, certain: list[Finding]) -> list[Replaced]:
        """Redacted spans in order; overlapping ones are one, under the replacement of the first."""
        spans: list[Replaced] = []
        for one in certain:
            if self._rules[one.rule].action != "redact":
                continue
            if spans and one.start < spans[-1].end:
                spans[-1] = Replaced(spans[-1].start, max(spans[-1].end, one.end), spans[-1].replacement)
            else:
                spans.append(Replaced(one.start, one.end, self._rules[one.rule].replacement))
        return spans

    def _flag(self, certain: list[Finding], limit: int) -> None:
        for one in certain:
            if not self._flagged and self._rules[one.rule].action == "flag" and one.start < limit:
                self._flagged = self._rules[one.rule].name

    def _trim(self, released: int, clear_to: int) -> None:
        """Keeps what is held, and one code point before it for word edges."""
        self._found = [one for one in self._found if one.end > released or one.start >= released]
        keep_from = max(self._base, min(released, clear_to) - 1)
        self._text, self._base = self._text[keep_from - self._base :], keep_from
