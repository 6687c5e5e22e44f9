"""The links to all workers: opened to every replica that is known, so that the first request does not wait.

Follows the control plane's list as a hint; a routed replica that it does not name is linked all the same.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit.channels import Tls, connect
from headrace_kit.lifecycle import backoff_s, cancel_and_wait, report_crash

log = logging.getLogger(__name__)
_SERVING = (pb.REPLICA_STATE_READY, pb.REPLICA_STATE_DEGRADED, pb.REPLICA_STATE_DRAINING)


@dataclass(frozen=True)
class Peer:
    """Who attaches, and how its channels are opened."""

    hello: pb.Hello
    token: str
    tls: Tls | None


class WorkerPool:
    """At most one live link per endpoint."""

    def __init__(
        self, peer: Peer, frame_timeout_s: float, on_orphans: Callable[[WorkerLink, list[pb.Orphan]], None]
    ) -> None:
        self._peer, self._frame_timeout_s, self._on_orphans = peer, frame_timeout_s, on_orphans
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._links: dict[str, WorkerLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.replicas: dict[str, fleet_pb2.Replica] = {}

    def link(self, endpoint: str) -> WorkerLink:
        """The live link to an endpoint, opened if there is none."""
        link = self._links.get(endpoint)
        if link is None or link.closed:
            link = self._links[endpoint] = WorkerLink(self._channel(endpoint), self._peer.hello, self._on_orphans)
            task = asyncio.create_task(link.run(self._frame_timeout_s), name=f"attach {endpoint}")
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        return link

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        report_crash("attach", task)

    @property
    def live_links(self) -> list[WorkerLink]:
        return [link for link in self._links.values() if not link.closed]

    def num_ready(self, model: str) -> int:
        """Ready replicas of a model, as far as the control plane said."""
        ready = pb.REPLICA_STATE_READY
        return sum(replica.model == model and replica.state == ready for replica in self.replicas.values())

    async def follow(self, channel: grpc.aio.Channel, instance: str) -> None:
        """Follows WatchReplicas for ever; for `host.tasks.start`. Every reconnect begins with the whole list."""
        stub: Any = fleet_pb2_grpc.FleetStub(channel)
        attempt = 0
        while True:
            try:
                async for update in stub.WatchReplicas(fleet_pb2.WatchReplicasRequest(instance=instance)):
                    attempt = 0
                    self._take(update)
            except grpc.aio.AioRpcError as error:
                log.info("replica_watch_lost", extra={"code": error.code().name})
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1

    async def keep_linked(self) -> None:
        """Opens again what broke, once a second, for as long as the replica is listed; for `host.tasks.start`."""
        while True:
            for replica in list(self.replicas.values()):
                if replica.state in _SERVING:
                    self.link(replica.ref.endpoint)
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def _take(self, update: fleet_pb2.ReplicaSet) -> None:
        if update.full:
            self.replicas = {}
        for replica in update.replicas:
            self.replicas[replica.ref.id] = replica
            if replica.state in _SERVING:
                self.link(replica.ref.endpoint)
        for removed in update.removed:
            self.replicas.pop(removed, None)
        self._drop_unused_channels()

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if endpoint not in self._channels:
            self._channels[endpoint] = connect(endpoint, token=self._peer.token, peer="worker", tls=self._peer.tls)
        return self._channels[endpoint]

    def _drop_unused_channels(self) -> None:
        """A replica that left takes its channel along once its link has closed."""
        listed = {replica.ref.endpoint for replica in self.replicas.values()}
        for endpoint in [name for name in self._channels if name not in listed]:
            link = self._links.get(endpoint)
            if link is not None and not link.closed:
                continue
            self._links.pop(endpoint, None)
            task = asyncio.create_task(self._channels.pop(endpoint).close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
