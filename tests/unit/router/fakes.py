"""Replicas and rows for tests of the router."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace.v1 import fleet_pb2, response_pb2, snapshot_pb2, worker_pb2
from headrace_router.fleet_rules import FleetRules
from headrace_router.in_flight import InFlight
from headrace_router.replicas import Replica, ReplicaTable

READY = worker_pb2.REPLICA_STATE_READY


def row(replica_id: str = "w-1", model: str = "m", **facts: Any) -> fleet_pb2.Replica:
    endpoint = facts.pop("endpoint", f"127.0.0.1:{replica_id[-1]}")
    ref = response_pb2.ReplicaRef(id=replica_id, epoch="e1", endpoint=endpoint)
    return fleet_pb2.Replica(**{"ref": ref, "pool": "p", "model": model, "revision": "1", "role": "both", **facts})


def full(*rows: fleet_pb2.Replica, registry_id: str = "r1", revision: int = 1) -> fleet_pb2.ReplicaSet:
    return fleet_pb2.ReplicaSet(full=True, replicas=rows, registry_id=registry_id, revision=revision)


def section(**pool: Any) -> snapshot_pb2.RouterSection:
    settings = {"name": "p", "model": "m", "hold_ms": 120_000, "max_held": 100, "max_replicas": 4, **pool}
    return snapshot_pb2.RouterSection(
        pools=[snapshot_pb2.Pool(**settings)],
        classes=[snapshot_pb2.SloClass(name="standard", ttft_ms=700, max_queue_ms=5000, inter_token_ms=50)],
    )


async def until(condition: Callable[[], Any], limit_s: float = 30.0) -> None:
    """Lets everything run until the condition holds; fails if it does not in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        await asyncio.sleep(0.001)


class Fleet:
    """Rules and a table on a virtual clock, whose replicas become ready when told."""

    def __init__(self, clock: Callable[[], float], **pool: Any) -> None:
        self.rules, self.in_flight = FleetRules(), InFlight()
        self.rules.apply(section(**pool))
        self.table = ReplicaTable(self.rules, self.in_flight, clock)

    def ready(self, *replica_ids: str, **described: Any) -> list[Replica]:
        """Lists these replicas besides those that are there, and lets each one say that it is ready and idle."""
        known = [replica.row for replica in self.table]
        self.table.apply(full(*known, *(row(name) for name in replica_ids)))
        return [self.say_ready(name, **described) for name in replica_ids]

    def say_ready(self, replica_id: str, epoch: str = "e1", **described: Any) -> Replica:
        replica = self.table.get(replica_id)
        assert replica is not None
        features = worker_pb2.Description.Features(
            grammar=described.pop("grammar", True), logprobs=described.pop("logprobs", True)
        )
        replica.description = worker_pb2.Description(
            **{"kv_context": b"ctx", "page_tokens": 16, "max_context_tokens": 8192, "features": features, **described}
        )
        self.table.set_state(replica, epoch, READY)
        self.table.set_load(replica, worker_pb2.Load())
        self.table.set_connected(replica, True)
        return replica
