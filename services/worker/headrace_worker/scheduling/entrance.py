"""From submit to admission: refuse what cannot run, let wait what may, admit who is next and fits.

Every way not to be admitted ends here, in one Refused. Knows who waits and who was admitted, not what they compute.
"""

from __future__ import annotations

from headrace_worker.scheduling.admission import Admission
from headrace_worker.scheduling.events import Accepted, Event, Refused
from headrace_worker.scheduling.fairness import PROMPT_TOKEN_COST, VirtualTokens
from headrace_worker.scheduling.group import Group
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.request import Request
from headrace_worker.scheduling.running import RunningSet
from headrace_worker.scheduling.validity import check_request
from headrace_worker.scheduling.waiting import Waiting, WaitingRoom

# How many waiting requests are tried when the head does not fit.
_MAX_TRIED = 8
_RETRY_AFTER_S = 1.0
_DETAILS = {
    "busy": "the waiting room is full",
    "share_exceeded": "this tenant fills its half of the waiting room",
    "queue_deadline": "no room was found within the queue deadline",
}


class HandleInUse(ValueError):
    """A submit named a handle that a live choice has."""


class Entrance:
    """The waiting room with its doors."""

    def __init__(self, limits: Limits, room: WaitingRoom, admission: Admission, running: RunningSet) -> None:
        self.room = room
        self._limits = limits
        self._admission = admission
        self._running = running
        self._fairness: VirtualTokens = room.fairness
        self._events: list[Event] = running.events
        self._live_handles: set[int] = running.live_handles

    def submit(self, request: Request, now: float) -> None:
        """Queue the request or refuse it. Raises HandleInUse before anything has changed."""
        fault = check_request(request, self._limits)
        if fault is not None:
            self._events.append(fault)
            return
        handles = range(request.handle, request.handle + request.n)
        if not self._live_handles.isdisjoint(handles):
            raise HandleInUse(f"handles {handles.start} to {handles.stop - 1} are not all free")
        reason = self.room.refusal(request.fair_key)
        if reason is not None:
            self._refuse(request, reason)
            return
        self._live_handles.update(handles)
        self.room.add(request, now)

    def expire(self, now: float) -> None:
        """Refuse whose queue deadline has come."""
        for entry in self.room.advance(now):
            self._turn_away(entry, "queue_deadline")

    def cancel(self, response_id: str, attempt: int, choice: int, reason: str) -> None:
        """Cancel a waiting response, or one choice of it (-1: all); attempt 0 means any."""
        for entry in self.room.attempts(response_id):
            if attempt not in (0, entry.request.attempt):
                continue
            dropped = range(entry.request.n) if choice < 0 else (choice,)
            entry.dropped.update(dict.fromkeys(dropped, reason))
            if all(index in entry.dropped for index in range(entry.request.n)):
                self._turn_away(entry, reason)

    def clear_way(self, now: float) -> None:
        """Preempt statistical requests for the default one that is next, if it needs what they hold."""
        if not self.room:
            return
        blocking = self.room.blocking(now)
        candidates = self.room.candidates(_MAX_TRIED) if blocking is None else [blocking]
        statistical = self._admission.statistical
        entry = next((each for each in candidates if not statistical.admits(each.request)), None)
        while entry is not None:
            num_choices = self._running.num_choices + entry.request.n - self._limits.max_running
            if not self._admission.make_room(entry, num_choices):
                return

    def admit_next(self, now: float) -> Group | None:
        """The next request that may enter and fits; others may pass a head that does not, until it is half due."""
        blocking = self.room.blocking(now)
        candidates = self.room.candidates(_MAX_TRIED) if blocking is None else [blocking]
        for entry in candidates:
            group = self._try_enter(entry, now)
            if group is not None:
                return group
        # One of the statistical class blocks nobody.
        if candidates and not self._admission.statistical.admits(candidates[0].request):
            self.room.mark_passed(candidates[0])
        return None

    def _try_enter(self, entry: Waiting, now: float) -> Group | None:
        request = entry.request
        if self._running.num_choices + request.n > self._limits.max_running:
            return None
        group = self._admission.try_admit(entry)
        if group is None:
            return None
        self.room.remove(entry)
        group.admitted_s, group.queue_s = now, now - entry.arrived_s
        cost = PROMPT_TOKEN_COST * (group.num_prompt - group.cached_tokens)
        self._fairness.charge(request.fair_key, cost, request.weight)
        self._running.add(group)
        self._events.append(
            Accepted(
                request.handle,
                request.response_id,
                request.attempt,
                group.cached_tokens,
                group.reservation.promise,
                group.queue_s,
            )
        )
        for choice, reason in entry.dropped.items():
            if choice < request.n:
                self._running.end(group, group.sequences[choice], reason, now)
        return group

    def _turn_away(self, entry: Waiting, reason: str) -> None:
        self.room.remove(entry)
        request = entry.request
        self._live_handles.difference_update(range(request.handle, request.handle + request.n))
        self._refuse(request, reason)

    def _refuse(self, request: Request, reason: str) -> None:
        retry_after_s = _RETRY_AFTER_S if reason in _DETAILS else None
        detail = _DETAILS.get(reason, "cancelled while it waited")
        self._events.append(
            Refused(request.handle, request.response_id, request.attempt, reason, detail, retry_after_s=retry_after_s)
        )
