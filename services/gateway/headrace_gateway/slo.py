"""What a class promises, what responses got, and how fast the error budget burns. Pure: the clock is an argument.

A response meets its class when its first text came within the TTFT budget and no more than one in a hundred of its gaps
was over the inter-token budget. What its caller got wrong, or ended before the first text, says nothing about us and is
not counted; what we refused for want of capacity, and what failed, has met nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

DEFAULT_TARGET = 0.99
GAP_ALLOWANCE = 0.01
BIN_S = 10.0
WINDOWS_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class Budgets:
    """Of one class: seconds (0 = none), the share of responses that shall meet them; `reserve_s` is for delivery."""

    name: str
    ttft_s: float = 0.0
    inter_token_s: float = 0.0
    target: float = DEFAULT_TARGET
    reserve_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Experience:
    """What one response was like. `ttft_s` None: no text came. `num_late_gaps` were over the budget."""

    ttft_s: float | None
    num_gaps: int
    num_late_gaps: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Met:
    """Which parts of its class a response met."""

    ttft: bool
    inter_token: bool
    good: bool

    @property
    def broken(self) -> str:
        """The budget that was broken first: ttft, inter_token, or nothing."""
        return "" if self.ttft and self.inter_token else "inter_token" if self.ttft else "ttft"


def judge(budgets: Budgets, got: Experience) -> Met:
    """Edges are inside: a first text at exactly the budget has met it."""
    ttft = got.ttft_s is not None and (not budgets.ttft_s or got.ttft_s <= budgets.ttft_s)
    inter_token = not budgets.inter_token_s or got.num_late_gaps <= GAP_ALLOWANCE * got.num_gaps
    return Met(ttft, inter_token, ttft and inter_token and not got.failed)


@dataclass(slots=True)
class _Bin:
    start_s: float
    num: int = 0
    num_ttft: int = 0
    num_inter_token: int = 0
    num_good: int = 0


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares of the responses of a window, from 0 to 1; None if there were none. `burn` 1 spends the budget exactly."""

    num: int
    ttft: float | None
    inter_token: float | None
    goodput_per_s: float
    burn: float


@dataclass(slots=True)
class Track:
    """One class over the last hour, in bins of ten seconds."""

    budgets: Budgets
    _bins: deque[_Bin] = field(default_factory=deque)

    def add(self, met: Met, now: float) -> None:
        start_s = now - now % BIN_S
        if not self._bins or self._bins[-1].start_s < start_s:
            self._bins.append(_Bin(start_s))
            while self._bins[0].start_s < start_s - max(WINDOWS_S.values()):
                self._bins.popleft()
        last = self._bins[-1]
        last.num += 1
        last.num_ttft += met.ttft
        last.num_inter_token += met.inter_token
        last.num_good += met.good

    def over(self, window_s: float, now: float) -> Attainment:
        """The bins that lie at least partly in the window."""
        bins = [each for each in self._bins if each.start_s > now - window_s - BIN_S]
        num, num_good = sum(each.num for each in bins), sum(each.num_good for each in bins)
        if not num:
            return Attainment(0, None, None, 0.0, 0.0)
        allowed = max(1e-9, 1 - self.budgets.target)
        return Attainment(
            num,
            sum(each.num_ttft for each in bins) / num,
            sum(each.num_inter_token for each in bins) / num,
            num_good / window_s,
            (num - num_good) / num / allowed,
        )
