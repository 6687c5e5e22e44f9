"""What screening comes to, said for a whole text at once: the slow twin of the screener. Tells nothing of deltas."""

import itertools
from dataclasses import dataclass

from headrace_policy.screening.rule import Rule
from headrace_policy.screening.screener import Screener


@dataclass(frozen=True)
class Outcome:
    """What the client got in all, and how the text was judged."""

    delivered: str
    verdict: str
    rule: str


def deliver(rules: list[Rule], pieces: list[str], *, end: bool = True) -> Outcome:
    """Feeds the pieces and delivers as a gateway does: what is released, with what is replaced."""
    screener, raw, shown, released = Screener(rules), "", "", 0
    decision = None
    for i, piece in enumerate(pieces):
        raw += piece
        decision = screener.feed(piece, end and i == len(pieces) - 1)
        assert released <= decision.released_up_to <= len(raw)
        place = released
        for one in decision.replaced:
            assert place <= one.start < one.end <= decision.released_up_to
            shown += raw[place : one.start] + one.replacement
            place = one.end
        shown += raw[place : decision.released_up_to]
        released = decision.released_up_to
        if decision.verdict == "blocked":
            break
    assert decision is not None
    return Outcome(shown, decision.verdict, decision.rule)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text in pieces; cuts are places, in any order."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)] or [""]
