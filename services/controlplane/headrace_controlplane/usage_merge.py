"""Usage rows of several policies as one list by time, each row once. Pure: streams are any async iterators."""

import heapq
from collections.abc import AsyncIterator, Sequence

from headrace.v1 import policy_pb2

Key = tuple[int, str, str, str, bool]


async def merged(streams: Sequence[AsyncIterator[policy_pb2.UsageRow]]) -> AsyncIterator[policy_pb2.UsageRow]:
    """Every stream is in the order of time, tenant and row id. One head of each is held.

    Two policies may have the same row: one was killed after writing it and before telling Redis, the other took over.
    """
    heads: list[tuple[Key, int, policy_pb2.UsageRow]] = []

    async def advance(number: int) -> None:
        row = await anext(streams[number], None)
        if row is not None:
            heapq.heappush(heads, (_key(row), number, row))

    for number in range(len(streams)):
        await advance(number)
    last: Key | None = None
    while heads:
        key, number, row = heapq.heappop(heads)
        if key != last:
            yield row
        last = key
        await advance(number)


def _key(row: policy_pb2.UsageRow) -> Key:
    held = row.settlement.reservation
    return row.settled_at_ms, held.identity.tenant, row.row_id, held.response_id, row.correction
