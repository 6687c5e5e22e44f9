"""Follows every listed replica through its own watch, for its readiness, load and epoch. Decides nothing.

A replica that cannot be reached is not ready, whatever anybody else says of it.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import grpc

from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_kit import channels
from headrace_kit.channels import Tls
from headrace_kit.lifecycle import backoff_s
from headrace_router.per_replica import PerReplica
from headrace_router.replicas import Replica, ReplicaTable

log = logging.getLogger(__name__)
_DESCRIBE_S = 5.0
_BACKOFF_CAP_S = 2.0


@dataclass(frozen=True)
class Credentials:
    """How this router presents itself to replicas."""

    router_id: str
    token: str
    tls: Tls | None


class Watcher:
    """Watches one replica until cancelled."""

    def __init__(self, table: ReplicaTable, replica: Replica, credentials: Credentials) -> None:
        self._table, self._replica, self._credentials = table, replica, credentials

    async def run(self) -> None:
        endpoint = self._replica.row.ref.endpoint
        attempt = 0
        ours = self._credentials
        async with channels.connect(endpoint, token=ours.token, peer="worker", tls=ours.tls) as channel:
            stub: Any = worker_pb2_grpc.EngineStub(channel)
            while True:
                try:
                    async for event in stub.Watch(worker_pb2.WatchRequest(router_id=self._credentials.router_id)):
                        await self._take(stub, event)
                        attempt = 0
                except grpc.aio.AioRpcError as error:
                    if self._replica.connected:
                        facts = {"replica": self._replica.row.ref.id, "code": error.code().name}
                        log.warning("replica_watch_lost", extra=facts)
                finally:
                    self._table.set_connected(self._replica, False)
                await asyncio.sleep(backoff_s(attempt, cap_s=_BACKOFF_CAP_S))
                attempt += 1

    async def _take(self, stub: Any, event: worker_pb2.WatchEvent) -> None:
        table, replica = self._table, self._replica
        kind = event.WhichOneof("event")
        starts_over = event.epoch != replica.epoch
        state = event.state if kind == "state" else None
        # Before it counts as ready it is known what it can do; a loading one does not know that itself yet.
        if state == worker_pb2.REPLICA_STATE_READY or (starts_over and replica.ready):
            replica.description = await stub.Describe(worker_pb2.DescribeRequest(), timeout=_DESCRIBE_S)
        if state is not None:
            table.set_state(replica, event.epoch, state)
        elif starts_over:
            table.restart(replica, event.epoch)
        if kind == "load":
            table.set_load(replica, event.load)
        elif kind == "step_model":
            table.set_coefficients(replica, event.step_model)
        elif kind == "transfer_model":
            table.set_transfer(replica, event.transfer_model)
        table.set_connected(replica, True)


def watchers(table: ReplicaTable, credentials: Credentials) -> PerReplica:
    """One watcher per listed replica."""
    return PerReplica(table, "watch", lambda replica: Watcher(table, replica, credentials).run())
