"""The capacity plan of one replica: bytes, devices, full reservations, predicted times. Pure; printing is elsewhere."""

from dataclasses import dataclass, field

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import GIB, Card
from headrace_worker.perf.errors import LayoutError, PerfError
from headrace_worker.perf.layout import Layout, is_possible
from headrace_worker.perf.memory import (
    DeviceMemory,
    MemoryDemand,
    StepShape,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    weight_bytes,
    workspace_bytes,
)
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.precision import Precision
from headrace_worker.perf.resources import Resource
from headrace_worker.perf.step import Roofline, StepLoad

DEFAULT_CONTEXT = 8192
DEFAULT_RESERVE_BYTES = 4 * GIB
MAX_PIPELINE = 16
PREFILL_TOKENS = (640, 1024, 4096, 8192)
DECODE_BATCHES = (1, 8, 32, 64, 128)


@dataclass(frozen=True)
class PlanRequest:
    """What is asked. No `layout`: the fewest devices that hold one full sequence. `reserve_bytes` is per device."""

    shape: ModelShape
    weights: Precision
    kv: Precision
    card: Card
    context: int = DEFAULT_CONTEXT
    layout: Layout | None = None
    reserve_bytes: int | None = None


@dataclass(frozen=True)
class StepPrediction:
    """One kind of step: `num_tokens` of a prompt, or one token of each of `batch` sequences at `context`."""

    batch: int
    context: int
    num_tokens: int
    time_s: float
    binding: Resource
    shares: dict[Resource, float]


@dataclass(frozen=True)
class PlanReport:
    """The answer. Bytes are totals over the replica unless the name says device."""

    request: PlanRequest
    layout: Layout
    min_devices: int | None
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    weight_bytes: int
    reserve_bytes_per_device: int
    workspace_bytes_per_device: int
    devices_memory: tuple[DeviceMemory, ...]
    full_reservations: int
    prefill: tuple[StepPrediction, ...]
    decode: tuple[StepPrediction, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether at least one full sequence fits beside weights and reserve."""
        return self.full_reservations > 0


def plan(request: PlanRequest) -> PlanReport:
    """Answers `request`; `PerfError` names the field that cannot be planned for."""
    if not 1 <= request.context <= request.shape.max_context:
        limit = request.shape.max_context
        raise PerfError("context", f"{request.context} is not within 1..{limit}, the positions of {request.shape.name}")
    demand = MemoryDemand(request.shape, request.weights, request.kv, request.context)
    smallest = _smallest_layout(request, demand)
    layout = request.layout or smallest
    if layout is None:
        raise LayoutError("gpu", f"no layout on {request.card.name} holds {request.shape.name} and one full sequence")
    layout.check(request.shape)
    reserve = reserve_bytes(request, layout)
    devices = demand.per_device(request.card, layout, reserve)
    full = demand.full_reservations(request.card, layout, reserve)
    roofline = Roofline(request.shape, request.weights, request.kv, request.card, layout)
    return PlanReport(
        request=request,
        layout=layout,
        min_devices=smallest.num_devices if smallest else None,
        kv_bytes_per_token=kv_bytes_per_token(request.shape, request.kv),
        kv_bytes_per_sequence=kv_bytes_per_sequence(request.shape, request.kv, request.context),
        weight_bytes=weight_bytes(request.shape, request.weights),
        reserve_bytes_per_device=reserve,
        workspace_bytes_per_device=workspace_bytes(request.shape, layout, request.card, StepShape()),
        devices_memory=devices,
        full_reservations=full,
        prefill=_prefills(request, roofline, devices) if full else (),
        decode=_decodes(request, roofline, devices, full) if full else (),
        notes=tuple(_notes(request, layout, full, reserve)),
    )


def reserve_bytes(request: PlanRequest, layout: Layout) -> int:
    """The reserve of each device: as asked, else 4 GiB on a published card, the estimated workspace on a CPU."""
    if request.reserve_bytes is not None:
        return request.reserve_bytes
    if request.card.is_measured:
        return workspace_bytes(request.shape, layout, request.card, StepShape(max_tokens=1024, max_sequences=32))
    return DEFAULT_RESERVE_BYTES


def _smallest_layout(request: PlanRequest, demand: MemoryDemand) -> Layout | None:
    """Fewest devices first; among equals the widest tensor group within the fast links, which has the lower latency."""
    layouts = (
        Layout(tensor, pipeline)
        for pipeline in range(1, MAX_PIPELINE + 1)
        for tensor in range(1, request.card.max_fast_group + 1)
    )
    possible = (layout for layout in layouts if is_possible(request.shape, layout))
    for layout in sorted(possible, key=lambda each: (each.num_devices, each.pipeline)):
        if demand.full_reservations(request.card, layout, reserve_bytes(request, layout)):
            return layout
    return None


def _prefills(
    request: PlanRequest, roofline: Roofline, devices: tuple[DeviceMemory, ...]
) -> tuple[StepPrediction, ...]:
    sizes = sorted({*(size for size in PREFILL_TOKENS if size < request.context), min(request.context, 8192)})
    return tuple(_predict(request, roofline, devices, StepLoad((Prefill(size),))) for size in sizes)


def _decodes(
    request: PlanRequest, roofline: Roofline, devices: tuple[DeviceMemory, ...], full: int
) -> tuple[StepPrediction, ...]:
    """Batches at full context, up to what the pool holds."""
    batches = sorted({*(batch for batch in DECODE_BATCHES if batch < full), full})
    loads = (StepLoad((), batch, batch * request.context) for batch in batches)
    return tuple(_predict(request, roofline, devices, load) for load in loads)


def _predict(
    request: PlanRequest, roofline: Roofline, devices: tuple[DeviceMemory, ...], load: StepLoad
) -> StepPrediction:
    cost = roofline.step(load)
    held = load.num_decodes or 1
    binding = cost.binding(_held_share(devices, held), _held_share(devices, held + 1))
    num_tokens = sum(chunk.num_tokens for chunk in load.prefills)
    return StepPrediction(load.num_decodes, request.context, num_tokens, cost.time_s, binding.resource, binding.shares)


def _held_share(devices: tuple[DeviceMemory, ...], num_sequences: int) -> float:
    """Share of the fullest device's HBM taken by weights, reserve and `num_sequences` full reservations."""
    return max(
        (each.weight_bytes + each.reserve_bytes + num_sequences * each.kv_bytes_per_sequence) / each.memory_bytes
        for each in devices
    )


def _notes(request: PlanRequest, layout: Layout, full: int, reserve: int) -> list[str]:
    notes = []
    if not full:
        notes.append(f"does not fit on {layout.num_devices} x {request.card.name}: no full sequence has room")
    if workspace_bytes(request.shape, layout, request.card, StepShape()) > reserve and not request.card.is_measured:
        notes.append("the runtime reserve is below the estimated workspace of an 8,192-token step")
    if request.shape.quantized and request.weights.bits >= 16:
        words = f"the checkpoint's weights are quantized ({request.shape.quantized})"
        notes.append(f"{words}: this is the plan for {request.weights.name}, unless another precision is named")
    if request.shape.num_window_layers:
        notes.append("sliding-window layers keep all their pages: the window masks, it does not free")
    if layout.tensor > request.shape.num_kv_heads:
        notes.append(f"{request.shape.num_kv_heads} KV heads are replicated over {layout.tensor} ranks")
    if layout.tensor > request.card.max_fast_group:
        notes.append(f"a tensor group of {layout.tensor} spans fast-link domains of {request.card.max_fast_group}")
    if request.weights.compute == "fp8" and not request.card.has("fp8"):
        notes.append(f"{request.card.name} has no fp8 arithmetic: fp8 weights save memory and bandwidth only")
    if request.weights.bits < 8:
        notes.append("times of 4-bit weights assume the efficiency of 16-bit products: none were measured")
    return notes
