"""The prefill side of one hand-off, as a state machine: until when its pages may be read, and when they may leave.

    granted --ack------------------> released                 the reader has all it wanted
            --abort, lease end-----> closed --+-> released    no read of ours runs, and of a one-sided transport:
                                     (fenced)                 at the lease's end and the longest operation after it

Closed for good: no renewal opens it again. Pure; the clock is an argument, in seconds.
"""

from __future__ import annotations

import enum


class LeaseState(enum.Enum):
    GRANTED = "granted"
    CLOSED = "closed"
    RELEASED = "released"


class SourceLease:
    """`one_sided`: the other side reads by itself, for at most `longest_s` after it found the lease in force."""

    def __init__(self, generation: int, now: float, lease_s: float, *, one_sided: bool, longest_s: float) -> None:
        assert generation > 0, "generation 0 is the word of no lease"
        self.generation = generation
        self.state = LeaseState.GRANTED
        self.reason = ""
        self.was_acknowledged = False
        self.ends_s = now + lease_s
        self._one_sided, self._longest_s = one_sided, longest_s
        self._num_reading = 0

    @property
    def word(self) -> int:
        """What readers must find: the generation while the lease is in force."""
        return self.generation if self.state is LeaseState.GRANTED else 0

    @property
    def released(self) -> bool:
        return self.state is LeaseState.RELEASED

    def renew(self, now: float, lease_s: float) -> bool:
        """False, and nothing changes, if the lease is over; renewing never shortens it."""
        self.tick(now)
        if self.state is not LeaseState.GRANTED:
            return False
        self.ends_s = max(self.ends_s, now + lease_s)
        return True

    def begin_read(self, now: float) -> bool:
        """A read of our own, to send what was read; False if the lease is over."""
        self.tick(now)
        if self.state is not LeaseState.GRANTED:
            return False
        self._num_reading += 1
        return True

    def end_read(self, now: float) -> None:
        assert self._num_reading > 0, "a read ends that never began"
        self._num_reading -= 1
        self.tick(now)

    def acknowledge(self, generation: int, now: float) -> bool:
        """The other side reads no more: it has everything, or its reads after an abort are over.

        One of another generation is not about these pages. False if it changed nothing.
        """
        if generation != self.generation or self.was_acknowledged or self.released:
            return False
        self.was_acknowledged = True
        if self.state is LeaseState.GRANTED:
            self._close("acknowledged")
        self.tick(now)
        return True

    def abort(self, reason: str, now: float) -> None:
        """From either side, at any time, as often as anyone likes."""
        if self.state is LeaseState.GRANTED:
            self._close(reason)
        self.tick(now)

    def tick(self, now: float) -> None:
        """What time alone brings."""
        if self.state is LeaseState.GRANTED and now >= self.ends_s:
            self._close("kv_expired")
        if self.state is LeaseState.CLOSED and not self._num_reading and self._is_unread(now):
            self.state = LeaseState.RELEASED

    def next_s(self) -> float | None:
        """When `tick` will change something by itself."""
        if self.state is LeaseState.GRANTED:
            return self.ends_s
        if self.state is LeaseState.CLOSED and not self._num_reading:
            return self.ends_s + self._longest_s
        return None

    def _is_unread(self, now: float) -> bool:
        """Whether the other side provably reads no more."""
        return self.was_acknowledged or not self._one_sided or now >= self.ends_s + self._longest_s

    def _close(self, reason: str) -> None:
        self.state, self.reason = LeaseState.CLOSED, reason
