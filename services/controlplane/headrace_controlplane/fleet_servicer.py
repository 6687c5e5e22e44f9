"""``headrace.v1.Fleet``: snapshot, replicas, leases, artifacts and demand, for services. Knows no operator."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_controlplane.artifacts import CHUNK_BYTES, Artifacts, BadArtifact
from headrace_controlplane.demand import DemandBoard
from headrace_controlplane.ledger import Current, Ledger
from headrace_controlplane.referee import Referee
from headrace_controlplane.registry import Record
from headrace_controlplane.replica_messages import to_record
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.roster import Roster
from headrace_controlplane.streams import any_of, until
from headrace_controlplane.subscribers import Subscriber, Subscribers, check_service
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait

log = logging.getLogger(__name__)
RELIST_S = 30.0


@dataclass(frozen=True)
class FleetState:
    """What the control plane knows, shared by its servicers."""

    ledger: Ledger
    roster: Roster
    artifacts: Artifacts
    subscribers: Subscribers
    demand: DemandBoard
    referee: Referee


class FleetServicer(fleet_pb2_grpc.FleetServicer):
    """``draining`` ends the long streams."""

    def __init__(self, state: FleetState, draining: asyncio.Event) -> None:
        self._state, self._draining = state, draining
        self._roll_call = RollCall(state.subscribers)
        self._differing: set[tuple[str, bytes]] = set()

    async def WatchSnapshot(self, requests: Any, context: Any) -> AsyncIterator[fleet_pb2.Snapshot]:
        acks = until(self._draining, aiter(requests))
        first = await anext(acks, None)
        if first is None:
            return
        endpoint = reachable(first.endpoint, context.peer())
        subscriber = self._state.subscribers.add(first.service, first.instance, endpoint)
        subscriber.note(first.last_good, first.nacked, first.error)
        subscriber.leaving = first.leaving
        self._state.ledger.stay_ahead_of(first.last_good)
        ended = asyncio.Event()
        reader = asyncio.create_task(self._read_acks(acks, subscriber, ended))
        try:
            async for snapshot in self._snapshots(subscriber, ended):
                yield snapshot
        finally:
            self._state.subscribers.remove(subscriber)
            await cancel_and_wait(reader)
            if not subscriber.leaving and not self._draining.is_set():
                log.warning("subscriber_broke_off", extra={"peer_service": subscriber.service, "endpoint": endpoint})

    async def WatchReplicas(self, request: Any, context: Any) -> AsyncIterator[fleet_pb2.ReplicaSet]:
        """Everything at first, for the caller's revision may be another registry's, and again every RELIST_S."""
        roster, clock = self._state.roster, asyncio.get_running_loop()
        sent, relist_at = -1, 0.0
        while not self._draining.is_set():
            changed, now = roster.changed, clock.time()
            if now >= relist_at:
                relist_at = now + RELIST_S
                message = roster.message()
            else:
                message = roster.message(sent)
            if message.full or message.revision != sent:
                sent = message.revision
                yield message
            await any_of(changed, self._draining, timeout=max(0.0, relist_at - clock.time()))

    async def Register(self, requests: Any, context: Any) -> AsyncIterator[fleet_pb2.Directive]:
        async for heartbeat in until(self._draining, aiter(requests)):
            record = to_record(heartbeat.replica)
            record = replace(record, endpoint=reachable(record.endpoint, context.peer()))
            directive = fleet_pb2.Directive(lease_ms=round(self._state.roster.lease_s * 1000))
            if not self._state.roster.heartbeat(record):
                log.warning("replaced_epoch_still_alive", extra={"replica": record.id, "epoch": record.epoch})
                directive.stop = True
            elif record.card_digest and not self._state.artifacts.has(record.card_digest):
                directive.send_card = True
            else:
                self._note_card(record)
            yield directive

    async def GetArtifact(self, request: Any, context: Any) -> AsyncIterator[fleet_pb2.ArtifactChunk]:
        content = await asyncio.to_thread(self._state.artifacts.read, request.digest)
        if content is None:
            message = f"there is no artifact {request.digest.hex()[:16] or 'without a digest'}"
            raise HeadraceError("invalid_argument", message, field="digest")
        for start in range(0, len(content), CHUNK_BYTES):
            chunk = fleet_pb2.ArtifactChunk(data=content[start : start + CHUNK_BYTES])
            if start == 0:
                chunk.digest, chunk.total_bytes = request.digest, len(content)
            yield chunk

    async def PutArtifact(self, requests: Any, context: Any) -> fleet_pb2.PutArtifactResponse:
        source = aiter(requests)
        first = await anext(source, fleet_pb2.ArtifactChunk())
        try:
            writer = self._state.artifacts.receive(first.digest, first.total_bytes)
            try:
                writer.write(first.data)
                async for chunk in source:
                    writer.write(chunk.data)
                await asyncio.to_thread(writer.commit)
            finally:
                writer.close()
        except BadArtifact as error:
            field, _, message = str(error).partition(": ")
            raise HeadraceError("invalid_argument", message, field=field) from error
        log.info(
            "artifact_stored", extra={"digest": first.digest.hex(), "kind": first.kind, "bytes": first.total_bytes}
        )
        for record in self._state.roster.registry.records():
            if record.card_digest == first.digest:
                self._note_card(record)
        return fleet_pb2.PutArtifactResponse(digest=first.digest)

    async def Demand(self, request: Any, context: Any) -> fleet_pb2.DemandResponse:
        if not request.router_id:
            raise HeadraceError("invalid_argument", "is missing", field="router_id")
        self._state.demand.note(request)
        self._state.referee.hear(request.router_id, request.outcomes)
        return fleet_pb2.DemandResponse()

    async def FindGone(self, request: Any, context: Any) -> fleet_pb2.FindGoneResponse:
        check_service(request.service)
        return fleet_pb2.FindGoneResponse(gone=await self._roll_call.gone(request.service, request.instances))

    async def _read_acks(self, acks: AsyncIterator[Any], subscriber: Subscriber, ended: asyncio.Event) -> None:
        try:
            async for ack in acks:
                subscriber.note(ack.last_good, ack.nacked, ack.error)
                subscriber.leaving = ack.leaving
                if ack.nacked:
                    facts = {"service": subscriber.service, "subscriber": subscriber.instance}
                    log.error("snapshot_nacked", extra={**facts, "version": ack.nacked, "detail": ack.error})
        finally:
            ended.set()

    async def _snapshots(self, subscriber: Subscriber, ended: asyncio.Event) -> AsyncIterator[fleet_pb2.Snapshot]:
        """The newest version first and then each newer one; one that was refused is not sent again."""
        ledger, sent = self._state.ledger, 0
        while not ended.is_set():
            changed, current = ledger.changed, ledger.current
            if current is not None and current.row.version not in (sent, subscriber.nacked):
                sent = current.row.version
                yield _snapshot(current, subscriber.service)
            await any_of(changed, ended)

    def _note_card(self, record: Record) -> None:
        """The first card of a model's revision is its card until no living replica carries it any more.

        Where another revision is served, the new one's card is its turn to be served: that waits until it can be.
        """
        ledger, digest = self._state.ledger, record.card_digest
        known = ledger.card(record.model, record.revision)
        if not digest or ledger.current is None:
            return
        if known == digest:
            if record.state == "ready":
                ledger.note_ready(record.model, record.revision)
            return
        if known and self._carried(record, known):
            if (record.id, digest) not in self._differing:
                self._differing.add((record.id, digest))
                log.error("model_cards_differ", extra={"replica": record.id, "model": record.model})
            return
        served = ledger.current.served.get(record.model)
        if served is None or served[0] == record.revision or record.state == "ready":
            ledger.set_card(record.model, record.revision, digest)

    def _carried(self, record: Record, digest: bytes) -> bool:
        """Whether a living replica of the same model and revision has this card."""
        wanted = (record.model, record.revision, digest)
        return any((r.model, r.revision, r.card_digest) == wanted for r in self._state.roster.registry.records())


def reachable(endpoint: str, peer: str) -> str:
    """``endpoint`` with the address that its owner called from, where it names all addresses of its host."""
    host, _, port = endpoint.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return endpoint
    kind, _, rest = peer.partition(":")
    address = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]")
    return f"{address}:{port}" if kind in ("ipv4", "ipv6") else f"127.0.0.1:{port}"


def _snapshot(current: Current, audience: str) -> fleet_pb2.Snapshot:
    section = current.sections[audience]
    return fleet_pb2.Snapshot(
        version=current.row.version,
        hash=current.section_hash(audience),
        section=section,
        created_at_s=current.row.created_at_s,
    )
