"""What this replica is and how it is: the one place that knows its state, its epoch and its load.

    loading --> warming --> ready <--> degraded          draining: told to; gone: the engine has ended

Knows no Attach and no registry; whoever wants to hear of changes waits for `changed`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets

from headrace.v1 import response_pb2, worker_pb2
from headrace.v1.prefix_chain import kv_context
from headrace_kit.health import Health
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.runner import RunnerDescription
from headrace_worker.messages import Phase, Ready
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.group import promised_pages
from headrace_worker.scheduling.load import Load
from headrace_worker.transfer.rate import TransferRate

COMPONENT = "engine"
_REASONS = {
    worker_pb2.REPLICA_STATE_DEGRADED: "the engine makes no progress",
    worker_pb2.REPLICA_STATE_DRAINING: "draining",
    worker_pb2.REPLICA_STATE_GONE: "the engine has ended",
}


class Replica:
    """State of one replica. Change it only from the event loop."""

    def __init__(self, config: WorkerConfig, endpoint: str, health: Health) -> None:
        self.config = config
        self.replica_id = config.replica_id or f"{config.pool}-{secrets.token_hex(4)}"
        self.endpoint = config.advertise or endpoint
        self.epoch = secrets.token_hex(8)
        self.state = worker_pb2.REPLICA_STATE_LOADING
        self.progress = "starting"
        self.description: RunnerDescription | None = None
        self.startup_s: dict[str, float] = {}
        self.load: Load | None = None
        self.step_model: StepModel | None = None
        self.transfer_rate = TransferRate()
        self.version = 0
        self._loaded = self._draining = self._stalled = self._gone = False
        self._health = health
        self._changed = asyncio.Event()
        health.add(COMPONENT, reason="starting")

    @property
    def ref(self) -> response_pb2.ReplicaRef:
        return response_pb2.ReplicaRef(id=self.replica_id, epoch=self.epoch, endpoint=self.endpoint)

    @property
    def ready(self) -> bool:
        return self.state == worker_pb2.REPLICA_STATE_READY

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def kv_context(self) -> bytes:
        """Everything but tokens and tenant that shapes this replica's KV."""
        if self.description is None:
            return b""
        shape = self.description
        return kv_context(shape.fingerprint, quantization=shape.quantization, kv_dtype=shape.precision)

    @property
    def page_bytes(self) -> int:
        """Of one KV page over all layers; 0 before the model is loaded."""
        shape = self.description
        return shape.kv_bytes_per_token * shape.page_tokens if shape is not None else 0

    async def changed(self, version: int, timeout_s: float) -> None:
        """Until something here has changed since `version`, or so many seconds."""
        if version != self.version:
            return
        waiter = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait([waiter], timeout=timeout_s)
        waiter.cancel()

    def note_phase(self, phase: Phase) -> None:
        self.progress = f"{phase.phase} {phase.text} {phase.share:.0%}"
        if phase.phase == "warming":
            self.state = worker_pb2.REPLICA_STATE_WARMING
        self._resolve()

    def note_ready(self, ready: Ready) -> None:
        self.description, self.startup_s = ready.description, ready.startup_s
        self.progress = "ready"
        self._loaded = True
        self._resolve()

    def note_load(self, load: Load) -> None:
        if load != self.load:
            self.load = load
            self._notify()

    def note_step_model(self, model: StepModel) -> None:
        self.step_model = model
        self._notify()

    def note_transfer_rate(self, rate: TransferRate) -> None:
        self.transfer_rate = rate
        self._notify()

    def note_stall(self, stalled: bool) -> None:
        if stalled != self._stalled:
            self._stalled = stalled
            self._resolve()

    def note_flush(self) -> None:
        """The cache is empty: nothing that was known of it holds."""
        self.epoch = secrets.token_hex(8)
        self._notify()

    def drain(self) -> None:
        self._draining = True
        self._resolve()

    def leave(self) -> None:
        """Nothing will be served any more: the engine has ended, or the process is about to."""
        self._gone = True
        self._resolve()

    def describe(self) -> worker_pb2.Description:
        """What is known so far; sizes are 0 before the model is loaded."""
        config, shape = self.config, self.description
        common = worker_pb2.Description(
            replica=self.ref,
            pool=config.pool,
            role=config.role,
            domains=config.domains or (shape.domains if shape is not None else ()),
            engine=config.engine,
            page_tokens=config.page_tokens,
            tp=config.tp,
            pp=config.pp,
            startup_s=self.startup_s,
        )
        if shape is not None:
            common.MergeFrom(_measured(shape, self.kv_context))
        return common

    def _resolve(self) -> None:
        if self._gone:
            self.state = worker_pb2.REPLICA_STATE_GONE
        elif self._draining:
            self.state = worker_pb2.REPLICA_STATE_DRAINING
        elif self._loaded:
            self.state = worker_pb2.REPLICA_STATE_DEGRADED if self._stalled else worker_pb2.REPLICA_STATE_READY
        if self.ready:
            self._health.serving(COMPONENT)
        else:
            self._health.not_serving(COMPONENT, _REASONS.get(self.state, self.progress))
        self._notify()

    def _notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _measured(shape: RunnerDescription, context: bytes) -> worker_pb2.Description:
    per_sequence = promised_pages(1, shape.max_context - 1, 1, shape.page_tokens)
    return worker_pb2.Description(
        model=shape.model,
        revision=shape.revision,
        fingerprint=shape.fingerprint,
        kv_context=context,
        num_pages=shape.num_pages,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        weight_bytes=shape.weight_bytes,
        workspace_bytes=shape.workspace_bytes,
        kv_pool_bytes=shape.kv_pool_bytes,
        num_full_reservations=shape.num_pages // per_sequence,
        features=worker_pb2.Description.Features(grammar=shape.grammar, logprobs=shape.logprobs),
        card_digest=card_digest(shape.card),
        max_context_tokens=shape.max_context,
        all_reduce=[worker_pb2.AllReduceTime(bytes=size, us=s * 1e6) for size, s in shape.all_reduce],
    )


def card_digest(card: bytes) -> bytes:
    """The name under which the control plane keeps a model card."""
    return hashlib.sha256(card).digest()
