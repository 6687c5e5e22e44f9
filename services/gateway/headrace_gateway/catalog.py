"""The models that may be named, with their cards: what the snapshot says, made ready to use.

Cards come from the control plane by digest and are kept on disk, so that a gateway starts without it and knows models
that have no replica.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2, policy_pb2, prefix_chain, snapshot_pb2
from headrace_gateway.bounds import Limits
from headrace_gateway.text.card import CardError, ModelCard, parse_card
from headrace_gateway.text.prompt import PromptEncoder
from headrace_gateway.text.tokenizer import Tokenizer
from headrace_kit.errors import HeadraceError
from headrace_kit.files import write_atomically
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
_FETCH_S = 30.0
_MAX_CARD_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class ServedModel:
    """One model of the snapshot whose card is here."""

    entry: snapshot_pb2.ModelEntry
    encoder: PromptEncoder

    @property
    def card(self) -> ModelCard:
        return self.encoder.card

    @property
    def tokenizer(self) -> Tokenizer:
        return self.encoder.tokenizer

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self.entry.aliases)

    @property
    def limits(self) -> Limits:
        """The card's limits, within what the pools allow; the snapshot may name another default."""
        default = self.entry.default_max_output_tokens or self.card.default_output
        return Limits(self.card.max_context, default).within(self.entry.max_sequence_tokens or None)

    def describe(self, name: str, num_ready: int) -> inference_pb2.Model:
        return inference_pb2.Model(
            id=name,
            created_at_s=self.entry.created_at_s,
            owned_by="headrace",
            max_context_tokens=self.limits.max_context,
            chat=self.card.can_chat,
            num_ready_replicas=num_ready,
        )


class Catalog:
    """`apply` takes a section; `run` fetches the cards that are missing."""

    def __init__(self, channel: grpc.aio.Channel, folder: Path) -> None:
        self._stub: Any = fleet_pb2_grpc.FleetStub(channel)
        self._folder = folder
        self._section = snapshot_pb2.GatewaySection()
        self._entries: dict[str, snapshot_pb2.ModelEntry] = {}
        self._known = False
        self._served: dict[str, ServedModel] = {}
        self._changed = asyncio.Event()
        self.classes: dict[str, snapshot_pb2.SloClass] = {}

    def apply(self, section: snapshot_pb2.GatewaySection) -> None:
        """Puts a section in force; raises ValueError when a name stands for two models."""
        entries: dict[str, snapshot_pb2.ModelEntry] = {}
        for entry in section.models:
            for name in (entry.name, *entry.aliases):
                if name in entries:
                    raise ValueError(f"{name} stands for two models")
                entries[name] = entry
        self._section, self._entries, self._known = section, entries, True
        self.classes = {one.name: one for one in section.classes}
        self._changed.set()

    def is_statistical(self, slo_class: str) -> bool:
        """Whether requests of this class give way to others; not if there is none of this name."""
        found = self.classes.get(slo_class)
        return found is not None and found.statistical

    def find(self, name: str) -> ServedModel:
        """The model of a name or alias; raises model_not_found, or no_replica while its card has not come."""
        entry = self._entries.get(name)
        if entry is None and not self._known:
            raise HeadraceError("no_replica", "this gateway has just started and knows no model yet", retry_after_s=1.0)
        if entry is None:
            raise HeadraceError("model_not_found", f"there is no model {name[:80]!r}", field="model")
        served = self._served.get(entry.name)
        if served is None:
            raise HeadraceError("no_replica", f"no replica of {entry.name} has registered yet", retry_after_s=1.0)
        return served

    def resolve(self, name: str) -> str | None:
        """The model that a name or alias stands for; None for one that is not in the snapshot."""
        entry = self._entries.get(name)
        return None if entry is None else entry.name

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Origins that a browser may call from."""
        return tuple(self._section.cors_origins)

    def models(self) -> list[ServedModel]:
        """Every model whose card is here."""
        return [self._served[entry.name] for entry in self._section.models if entry.name in self._served]

    def chain_root(self, model: ServedModel, identity: policy_pb2.Identity) -> bytes:
        """Root of the prefix chains of one tenant, or of the group with which it shares; no client can choose it."""
        owner = f"group:{identity.sharing_group}" if identity.sharing_group else f"tenant:{identity.tenant}"
        salt = hmac.digest(self._section.salt_secret, owner.encode(), hashlib.sha256)
        return prefix_chain.chain_root(model.card.tokenizer_digest, salt)

    async def run(self) -> None:
        """Loads missing cards for ever; for `host.tasks.start`, which begins anew what crashed: so does this."""
        attempt = 0
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._load_all():
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
                self._changed.set()
            else:
                attempt = 0

    async def _load_all(self) -> bool:
        """Whether nothing is missing that could be had."""
        complete = True
        served: dict[str, ServedModel] = {}
        for entry in self._section.models:
            model = await self._load(entry)
            if model is not None:
                served[entry.name] = model
            complete = complete and (model is not None or not entry.card_digest)
        self._served = served
        return complete

    async def _load(self, entry: snapshot_pb2.ModelEntry) -> ServedModel | None:
        known = self._served.get(entry.name)
        if known is not None and known.entry.card_digest == entry.card_digest:
            return ServedModel(entry, known.encoder)
        if not entry.card_digest:
            return None
        try:
            data = await self._card_bytes(entry.card_digest)
            return await asyncio.to_thread(_serve, entry, data)
        except grpc.aio.AioRpcError as error:
            log.warning("card_not_fetched", extra={"model": entry.name, "code": error.code().name})
        except CardError as error:
            log.error("card_refused", extra={"model": entry.name, "detail": str(error)})
        return None

    async def _card_bytes(self, digest: bytes) -> bytes:
        path = self._folder / f"{digest.hex()}.json"
        with contextlib.suppress(OSError):
            kept = await asyncio.to_thread(path.read_bytes)
            if hashlib.sha256(kept).digest() == digest:
                return kept
        data = bytearray()
        async for chunk in self._stub.GetArtifact(fleet_pb2.GetArtifactRequest(digest=digest), timeout=_FETCH_S):
            data += chunk.data
            if len(data) > _MAX_CARD_BYTES:
                raise CardError("card", f"is over {_MAX_CARD_BYTES} bytes")
        if hashlib.sha256(data).digest() != digest:
            raise CardError("card", "does not have the digest that it was asked for by")
        try:
            await asyncio.to_thread(write_atomically, path, bytes(data))
        except OSError as error:  # it is served all the same; only the next start has to fetch it again
            log.error("card_not_stored", extra={"path": path, "detail": error})
        return bytes(data)


def _serve(entry: snapshot_pb2.ModelEntry, data: bytes) -> ServedModel:
    return ServedModel(entry, PromptEncoder(parse_card(data)))
