"""Requests whose opening takes a while: they are on the doorstep of the waiting room, on their own queue deadline.

Knows what may happen to them meanwhile (it is known, they are cancelled, their time is up), not what is prepared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace_worker.execution.runner import Opened, Opening, Rejected
from headrace_worker.scheduling.cancel import ALL_CHOICES, ANY_ATTEMPT, Cancel
from headrace_worker.scheduling.request import Request

_RETRY_AFTER_S = 1.0
_TOO_LATE = Rejected("queue_deadline", "", "it was not prepared within the queue deadline", _RETRY_AFTER_S)


@dataclass(eq=False)
class _Waiting:
    request: Request
    opening: Opening
    since_s: float
    cancels: list[Cancel] = field(default_factory=list)

    @property
    def deadline_s(self) -> float:
        limit_s = self.request.queue_deadline_s
        return math.inf if limit_s is None else self.since_s + limit_s


class Settled(NamedTuple):
    """What became of one request. Its queue deadline is what is left; `cancels` are of single choices of it."""

    request: Request
    outcome: Opened | Rejected
    cancels: tuple[Cancel, ...]


class Openings:
    """All of them, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request, opening: Opening, now: float) -> None:
        self._waiting.append(_Waiting(request, opening, now))

    def cancel(self, cancel: Cancel) -> None:
        """Noted for whom it names here; the others are somebody else's."""
        for each in self._waiting:
            request = each.request
            if request.response_id == cancel.response_id and cancel.attempt in (ANY_ATTEMPT, request.attempt):
                each.cancels.append(cancel)

    def settle(self, now: float) -> list[Settled]:
        """Those that need not be waited for any longer, each once."""
        settled, waiting = [], []
        for each in self._waiting:
            outcome = _cancelled(each) or (_TOO_LATE if each.deadline_s <= now else each.opening.outcome())
            if outcome is None:
                waiting.append(each)
            else:
                settled.append(Settled(_later(each, now), outcome, tuple(each.cancels)))
        self._waiting = waiting
        return settled


def _cancelled(waiting: _Waiting) -> Rejected | None:
    """The last reason, once every choice has been cancelled."""
    num_choices = waiting.request.n
    dropped = set(_dropped(waiting.cancels, num_choices))
    if len(dropped) < num_choices:
        return None
    return Rejected(waiting.cancels[-1].reason, "", "cancelled while it was prepared")


def _dropped(cancels: list[Cancel], num_choices: int) -> Iterator[int]:
    for cancel in cancels:
        yield from range(num_choices) if cancel.choice == ALL_CHOICES else (cancel.choice,)


def _later(waiting: _Waiting, now: float) -> Request:
    request = waiting.request
    if request.queue_deadline_s is None:
        return request
    return replace(request, queue_deadline_s=max(0.0, waiting.deadline_s - now))
