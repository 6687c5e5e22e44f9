"""What a tenant used, from whichever policies answer: their counters are the same ones, in Redis. Knows no channel."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from headrace.v1 import policy_pb2
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait

OTHERS_S = 1.0
"""How long the others may take once one has answered: they only name models that they alone have seen."""
Answer = policy_pb2.QuotaReport | HeadraceError


async def levels_of_all(asked: Sequence[Coroutine[Any, Any, Answer]], others_s: float = OTHERS_S) -> Answer:
    """One report of all answers, each limit once; the best error if none is a report."""
    waiting, heard = {asyncio.ensure_future(one) for one in asked}, list[Answer]()
    limit_s = None
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        heard += [one.result() for one in done]
        limit_s = others_s if any(isinstance(one, policy_pb2.QuotaReport) for one in heard) else None
    await cancel_and_wait(*waiting)
    return _merged(heard, len(asked))


def _merged(heard: Sequence[Answer], num_asked: int) -> Answer:
    reports = [one for one in heard if isinstance(one, policy_pb2.QuotaReport)]
    if not reports:
        return min((one for one in heard if isinstance(one, HeadraceError)), key=lambda error: error.row.http)
    levels = {(level.limit, level.scope): level for report in reversed(reports) for level in report.levels}
    return policy_pb2.QuotaReport(
        levels=[levels[place] for place in sorted(levels)], num_asked=num_asked, num_answered=len(reports)
    )
