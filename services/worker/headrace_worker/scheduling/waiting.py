"""The bounded waiting room: who may wait, for how long, and who is asked next.

Order: priority class first, then the fair key with the smallest virtual token counter, then arrival. A request that
has waited half its queue deadline moves to the most urgent class, so no class starves another. Knows neither pages nor
whether anything fits.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from headrace_worker.scheduling.fairness import VirtualTokens
from headrace_worker.scheduling.prefix import PrefixChain
from headrace_worker.scheduling.request import Request

_URGENT = 0
_MIN_TRIM = 256
_Lane: TypeAlias = tuple[int, str]


@dataclass(slots=True, eq=False)
class Waiting:
    """One request in the room. `due_s` is when it has waited half its deadline (or its patience, without one)."""

    request: Request
    arrived_s: float
    deadline_s: float
    due_s: float
    priority: int
    chain: PrefixChain | None = None
    # choice -> reason of cancels that came for single choices.
    dropped: dict[int, str] = field(default_factory=dict)
    in_room: bool = True


_Timer: TypeAlias = tuple[float, int, Waiting]


class WaitingRoom:
    """At most `max_waiting` requests, at most half of them of one fair key."""

    def __init__(self, max_waiting: int, patience_s: float, fairness: VirtualTokens) -> None:
        self._max_waiting = max_waiting
        self._max_of_key = max(1, max_waiting // 2)
        self._patience_s = patience_s
        self.fairness = fairness
        self._num_of_key: dict[str, int] = {}
        self._entries: OrderedDict[Waiting, None] = OrderedDict()
        self._lanes: dict[_Lane, OrderedDict[Waiting, None]] = {}
        # (class, counter when pushed, key) per lane: stale counters are corrected when they surface.
        self._turns: list[tuple[int, float, str]] = []
        self._deadlines: list[_Timer] = []
        self._dues: list[_Timer] = []
        self._passed: dict[Waiting, None] = {}
        self._by_response: dict[str, list[Waiting]] = {}
        self._num_arrived = 0
        self.num_queued_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries)

    def attempts(self, response_id: str) -> list[Waiting]:
        """The waiting attempts of one response: normally at most one."""
        return list(self._by_response.get(response_id, ()))

    def oldest_arrival_s(self) -> float | None:
        """When the request that has waited longest came."""
        return next((entry.arrived_s for entry in self._entries), None)

    def next_deadline_s(self) -> float | None:
        """When the next request must be refused if nothing else happens; never later than that."""
        return self._deadlines[0][0] if self._deadlines else None

    def refusal(self, fair_key: str) -> str | None:
        """Why one more request of this key may not enter: its own share first, then the room."""
        if self._num_of_key.get(fair_key, 0) >= self._max_of_key:
            return "share_exceeded"
        return "busy" if len(self._entries) >= self._max_waiting else None

    def add(self, request: Request, now: float) -> Waiting:
        """Let the request in (there must be no refusal)."""
        limit_s = request.queue_deadline_s
        deadline_s = math.inf if limit_s is None else now + limit_s
        due_s = now + (self._patience_s if limit_s is None else limit_s / 2)
        entry = Waiting(request, now, deadline_s, due_s, max(_URGENT, request.priority))
        key = request.fair_key
        self._num_of_key[key] = self._num_of_key.get(key, 0) + 1
        self._entries[entry] = None
        self._by_response.setdefault(request.response_id, []).append(entry)
        self._num_arrived += 1
        self.num_queued_tokens += request.num_prompt
        self.fairness.enter(key)
        self._queue(entry)
        if deadline_s < math.inf:
            heapq.heappush(self._deadlines, (deadline_s, self._num_arrived, entry))
        if entry.priority > _URGENT:
            heapq.heappush(self._dues, (due_s, self._num_arrived, entry))
        return entry

    def remove(self, entry: Waiting) -> None:
        """The entry leaves: admitted, cancelled or refused."""
        key = entry.request.fair_key
        entry.in_room = False
        del self._entries[entry]
        del self._lanes[entry.priority, key][entry]
        self._passed.pop(entry, None)
        attempts = self._by_response[entry.request.response_id]
        attempts.remove(entry)
        if not attempts:
            del self._by_response[entry.request.response_id]
        self._deadlines = self._trimmed(self._deadlines)
        self._dues = self._trimmed(self._dues)
        self.num_queued_tokens -= entry.request.num_prompt
        self.fairness.leave(key)
        count = self._num_of_key[key] - 1
        if count:
            self._num_of_key[key] = count
        else:
            del self._num_of_key[key]

    def advance(self, now: float) -> list[Waiting]:
        """Move who has waited long to the urgent class; return, still in the room, whose deadline has come."""
        while self._dues and (self._dues[0][0] <= now or not self._dues[0][2].in_room):
            entry = heapq.heappop(self._dues)[2]
            if entry.in_room:
                del self._lanes[entry.priority, entry.request.fair_key][entry]
                entry.priority = _URGENT
                self._queue(entry)
        expired = []
        while self._deadlines and (self._deadlines[0][0] <= now or not self._deadlines[0][2].in_room):
            entry = heapq.heappop(self._deadlines)[2]
            if entry.in_room:
                expired.append(entry)
        return expired

    def blocking(self, now: float) -> Waiting | None:
        """The head that was passed until half its deadline: until it leaves, nothing else may enter."""
        due = [entry for entry in self._passed if entry.due_s <= now]
        return min(due, key=lambda entry: entry.due_s, default=None)

    def mark_passed(self, entry: Waiting) -> None:
        """The entry was the head, did not fit, and others may go before it for a while."""
        self._passed[entry] = None

    def candidates(self, limit: int) -> list[Waiting]:
        """Up to `limit` entries in order, the head first: of each key in turn its first, then their seconds, ..."""
        turns: list[tuple[int, float, str]] = []
        while self._turns and len(turns) < limit:
            turn = heapq.heappop(self._turns)
            current = self._current(turn)
            if current == turn:
                turns.append(turn)
            elif current is not None:
                heapq.heappush(self._turns, current)
        for turn in turns:
            heapq.heappush(self._turns, turn)
        found: list[Waiting] = []
        fronts = [list(islice(self._lanes[priority, key], limit)) for priority, _, key in turns]
        for depth in range(limit):
            found.extend(front[depth] for front in fronts if depth < len(front))
            if len(found) >= limit:
                break
        return found[:limit]

    def _trimmed(self, heap: list[_Timer]) -> list[_Timer]:
        """Timers of entries that left are dropped when they surface, or all at once when they are the most."""
        if len(heap) <= 2 * len(self._entries) + _MIN_TRIM:
            return heap
        kept = [timer for timer in heap if timer[2].in_room]
        heapq.heapify(kept)
        return kept

    def _queue(self, entry: Waiting) -> None:
        lane = (entry.priority, entry.request.fair_key)
        queue = self._lanes.get(lane)
        if queue is None:
            queue = self._lanes[lane] = OrderedDict()
            heapq.heappush(self._turns, (lane[0], self.fairness[lane[1]], lane[1]))
        queue[entry] = None

    def _current(self, turn: tuple[int, float, str]) -> tuple[int, float, str] | None:
        """The turn with its counter as of now; None (and the lane is gone) when nobody is left in it."""
        priority, _, key = turn
        if self._lanes[priority, key]:
            return priority, self.fairness[key], key
        del self._lanes[priority, key]
        return None
