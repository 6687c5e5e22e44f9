"""Leaving in order: admit nothing, let what runs end, end the rest at the deadline. Knows no signal and no stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace_worker.dispatch import Dispatch
from headrace_worker.replica import Replica

_LOOK_S = 0.1
_LAST_STEPS_S = 1.0


async def drain(
    replica: Replica, dispatch: Dispatch, deadline_s: float, clock: Callable[[], float] = time.monotonic
) -> int:
    """Returns the number of sequences that had to be ended when `deadline_s` seconds had passed."""
    replica.drain()
    await _until_empty(replica, dispatch, clock() + deadline_s, clock)
    num_ended = dispatch.end_all("replica_draining")
    await _until_empty(replica, dispatch, clock() + _LAST_STEPS_S, clock)
    return num_ended


async def _until_empty(replica: Replica, dispatch: Dispatch, at_s: float, clock: Callable[[], float]) -> None:
    while dispatch.attempts.num_live and clock() < at_s:
        await replica.changed(replica.version, min(_LOOK_S, max(0.0, at_s - clock())))
