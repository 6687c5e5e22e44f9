"""Keeps the list of replicas: from the control plane, and from disk while that is away. Knows no replica's state."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_kit.files import write_atomically
from headrace_kit.lifecycle import backoff_s
from headrace_router.replicas import ReplicaTable

log = logging.getLogger(__name__)


class Roster:
    """``run`` for ever. Every subscription begins with the whole list; a change that does not fit ends it."""

    def __init__(self, table: ReplicaTable, channel: grpc.aio.Channel, instance: str, state_dir: Path) -> None:
        self._table, self._stub, self._instance = table, fleet_pb2_grpc.FleetStub(channel), instance
        self._path = state_dir / "replicas.pb"
        self.known = asyncio.Event()
        """Set when there is a list, from wherever."""

    async def run(self) -> None:
        await self._start_from_disk()
        attempt = 0
        while True:
            call: Any = self._stub.WatchReplicas(fleet_pb2.WatchReplicasRequest(instance=self._instance))
            try:
                if await self._follow(call):
                    attempt = 0
            except grpc.aio.AioRpcError as error:
                log.warning("replica_list_lost", extra={"code": error.code().name, "detail": error.details()})
            finally:
                call.cancel()
            await asyncio.sleep(backoff_s(attempt))
            attempt += 1

    async def _follow(self, call: Any) -> bool:
        """Until the stream ends or does not fit together; whether a list came."""
        registry_id, revision = "", 0
        async for update in call:
            begins = update.full and (not registry_id or update.registry_id == registry_id)
            continues = update.registry_id == registry_id and update.revision > revision
            if not begins and not continues:
                log.warning("replica_list_gap", extra={"revision": update.revision, "last_revision": revision})
                return bool(registry_id)
            registry_id, revision = update.registry_id, update.revision
            self._table.apply(update)
            self.known.set()
            await self._store()
        return bool(registry_id)

    async def _store(self) -> None:
        try:
            await asyncio.to_thread(write_atomically, self._path, self._table.snapshot().SerializeToString())
        except OSError as error:  # the list is in force all the same; only the next start is older
            log.error("replica_list_not_stored", extra={"path": self._path, "detail": error})

    async def _start_from_disk(self) -> None:
        try:
            stored = fleet_pb2.ReplicaSet.FromString(await asyncio.to_thread(self._path.read_bytes))
        except FileNotFoundError:
            return
        except (OSError, DecodeError) as error:
            log.error("replica_list_not_restored", extra={"path": self._path, "detail": error})
            return
        self._table.apply(stored)
        self.known.set()
