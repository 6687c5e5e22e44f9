"""One task per listed replica, for as long as it is listed. Does not know what the tasks do."""

import asyncio
from collections.abc import Callable, Coroutine

from headrace_kit.lifecycle import cancel_and_wait
from headrace_router.replicas import Replica, ReplicaTable

_SWEEP_S = 1.0


class PerReplica:
    """``work`` runs until it is cancelled; one that crashes ends all of them, for the supervisor to start anew."""

    def __init__(self, table: ReplicaTable, name: str, work: Callable[[Replica], Coroutine[None, None, None]]) -> None:
        self._table, self._name, self._work = table, name, work
        self._tasks: dict[str, tuple[Replica, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                listed = self._table.listed
                self._table.drop_unlisted()
                await self._adjust()
                waiting = asyncio.create_task(listed.wait())
                await asyncio.wait([waiting], timeout=_SWEEP_S)
                await cancel_and_wait(waiting)
        finally:
            await cancel_and_wait(*(task for _, task in self._tasks.values()))
            self._tasks.clear()

    async def _adjust(self) -> None:
        for replica_id, (replica, task) in list(self._tasks.items()):
            if task.done():
                task.result()
            if self._table.get(replica_id) is not replica:
                del self._tasks[replica_id]
                await cancel_and_wait(task)
        for replica in self._table:
            replica_id = replica.row.ref.id
            if replica_id not in self._tasks:
                task = asyncio.create_task(self._work(replica), name=f"{self._name} {replica_id}")
                self._tasks[replica_id] = (replica, task)
