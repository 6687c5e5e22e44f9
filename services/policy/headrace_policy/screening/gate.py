"""One text under patterns and guards: what both let go may go. Pure: the clock is an argument; others ask guards."""

from dataclasses import replace

from headrace_policy.screening.jury import Opinion
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Decision, Replaced, Screener
from headrace_policy.screening.windows import WINDOW_S, Question, Windows


class Gate:
    """``windows`` says when guards are to be asked; without guards it stays unused, and nothing is held for it."""

    def __init__(self, rules: Ruleset, window_s: float = WINDOW_S) -> None:
        self.guards = rules.output_guards
        self.windows = Windows(window_s)
        self._screener = Screener(rules.output)
        self._read = Decision(0)
        self._held: list[Replaced] = []
        self._released, self._final = 0, False
        self._flagged = ""
        self._end: Decision | None = None

    @property
    def received(self) -> int:
        """Code points so far."""
        return self._screener.received

    @property
    def ended(self) -> bool:
        """Whether a block, or a guard that is away, has ended it."""
        return self._end is not None

    @property
    def done(self) -> bool:
        """Whether all of it was released, and nothing follows."""
        return self._final and self._released == self.received

    def feed(self, text: str, final: bool, now: float) -> Decision:
        self._read, self._final = self._screener.feed(text, final), final
        if not self.guards:
            self._released = self._read.released_up_to
            return self._read
        self._held.extend(self._read.replaced)
        self.windows.feed(text, final, now)
        return self._decide()

    def judged(self, question: Question, opinion: Opinion) -> Decision:
        """What a guard's word on a question changes."""
        if self._end is None and opinion.verdict in ("blocked", "lost"):
            self._end = Decision(self._released, opinion.verdict, opinion.rule)
        if opinion.verdict == "flagged":
            self._flagged = self._flagged or opinion.rule
        self.windows.clear(question)
        return self._decide()

    def _decide(self) -> Decision:
        if self._end is not None:
            return self._end
        limit = min(self._read.released_up_to, self.windows.cleared)
        fitting = []
        for span in self._held:
            if span.end > limit:  # a replaced span goes as a whole
                limit = min(limit, span.start)
                break
            fitting.append(span)
        self._held = self._held[len(fitting) :]
        self._released = max(limit, self._released)
        if self._read.verdict == "blocked":
            self._end = Decision(self._released, "blocked", self._read.rule)
            return replace(self._end, replaced=tuple(fitting))
        rule = self._read.rule or self._flagged
        verdict = "flagged" if rule else "passed" if self.done else ""
        return Decision(self._released, verdict, rule, tuple(fitting))
