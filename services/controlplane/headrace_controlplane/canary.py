"""Whether a revision on trial does worse than the one beside it. Pure: counts in, a verdict out. Knows no revision.

Three shares are compared: attempts that failed, first texts that were late, responses that were slow; each over the
whole trial and lately, so that a revision that goes bad after a long good time is found too. A share counts as worse
when it is larger by the margin and Fisher's exact test (one-sided; Fisher 1922) finds it unlikely to be chance. Looking
again and again would find chance in the end: look k may spend significance / ((k + 1) (k + 2)), which sums to the
significance over any number of looks, and each look shares it between its tests (Bonferroni).
"""

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Self

_NUM_TESTS = 6
# A look again when what is known grew by a quarter; lately: since at most this many times the minimum sample.
_GROWTH = 4
_WINDOW_SAMPLES = 10


@dataclass(frozen=True)
class Tally:
    """What became of the attempts of one revision; counts only grow during a trial."""

    num_ended: int = 0
    num_failed: int = 0
    num_ttft_met: int = 0
    num_ttft_missed: int = 0
    num_inter_token_met: int = 0
    num_inter_token_missed: int = 0

    def __add__(self, other: Self) -> "Tally":
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Self) -> "Tally":
        return Tally(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def at_least(self, other: Self) -> "Tally":
        """The newer of two reports of the same source, in whatever order they came."""
        return Tally(*(max(a, b) for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def num_outcomes(self) -> int:
        return max(self.num_ended, self.num_ttft_met + self.num_ttft_missed)

    def shares(self) -> Iterator[tuple[str, int, int]]:
        """(what is bad, how many were, of how many)."""
        yield "failed attempts", self.num_failed, self.num_ended
        yield "late first texts", self.num_ttft_missed, self.num_ttft_met + self.num_ttft_missed
        yield "slow responses", self.num_inter_token_missed, self.num_inter_token_met + self.num_inter_token_missed


@dataclass(frozen=True)
class Rule:
    """What it takes to halt a trial; see `rollout` of the fleet file."""

    min_samples: int
    significance: float
    margin: float


@dataclass(frozen=True)
class Progress:
    """How far a trial was judged: looks so far, from how many outcomes on to look again, where "lately" begins."""

    num_looks: int = 0
    look_at: int = 0
    since: tuple[Tally, Tally] = (Tally(), Tally())
    """Totals of the revision on trial and of the one beside it."""


@dataclass(frozen=True)
class Verdict:
    """``halt``: why the trial has to end; empty: it goes on."""

    progress: Progress
    halt: str = ""


def judge(trial: Tally, beside: Tally, progress: Progress, rule: Rule) -> Verdict:
    """Totals of the revision on trial and of the one beside it, of the same time."""
    num_outcomes = trial.num_outcomes
    if num_outcomes < max(rule.min_samples, progress.look_at):
        return Verdict(progress)
    num_lately = num_outcomes - progress.since[0].num_outcomes
    level = rule.significance / ((progress.num_looks + 1) * (progress.num_looks + 2)) / _NUM_TESTS
    horizons = [(trial, beside), (trial - progress.since[0], beside - progress.since[1])]
    tested = [test for pair in horizons for test in _tests(*pair, rule)]
    if not tested:
        return Verdict(progress)
    chance, words = min(tested)
    wait = max(1, rule.min_samples // _GROWTH, num_lately // _GROWTH)
    judged = replace(progress, num_looks=progress.num_looks + 1, look_at=num_outcomes + wait)
    if num_lately >= _WINDOW_SAMPLES * rule.min_samples:
        judged = replace(judged, since=(trial, beside))
    return Verdict(judged, f"{words} (p = {chance:.1e})" if chance <= level else "")


def _tests(trial: Tally, beside: Tally, rule: Rule) -> Iterator[tuple[float, str]]:
    """(chance, what was compared) of each share that is known well enough; chance is 1 within the margin."""
    for (what, bad, total), (_, beside_bad, beside_total) in zip(trial.shares(), beside.shares(), strict=True):
        if min(total, beside_total) < rule.min_samples:
            continue
        words = f"{what}: {bad} of {total}, against {beside_bad} of {beside_total} beside it"
        is_worse = bad / total - beside_bad / beside_total > rule.margin
        yield (chance_of_as_many(bad, total, beside_bad, beside_total) if is_worse else 1.0), words


def chance_of_as_many(bad: int, total: int, beside_bad: int, beside_total: int) -> float:
    """Of at least ``bad`` among ``total`` if both sides were alike: upper tail of the hypergeometric distribution."""
    all_bad, everything = bad + beside_bad, total + beside_total
    most = min(all_bad, total)
    whole = _log_choose(everything, total)
    log_term = _log_choose(all_bad, bad) + _log_choose(everything - all_bad, total - bad) - whole
    term = math.exp(log_term)
    chance = term
    for x in range(bad, most):
        term *= (all_bad - x) * (total - x) / ((x + 1) * (everything - all_bad - total + x + 1))
        chance += term
        if term < chance * 1e-16:
            break
    return min(1.0, chance)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
