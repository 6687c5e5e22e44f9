"""The fleet that is simulated: a fleet.yaml as production reads it, and beside it a section `simulation` with what a
machine would tell by itself: the dimensions of each model, what weights are stored as, nodes, faults.

    simulation:
      models: {fast: {shape: llama-3.1-8b}}
      pools: {fast: {weights: fp8, kv: bf16, host_ms: 1.0, scaling: {utilization: 0.8, down_after_s: 300}}}
      nodes: {count: 4, devices: 8}
      faults: [{at_s: 60, kind: kill, pool: fast, count: 2}]

Knows no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace_controlplane.autoscale import ScalePolicy
from headrace_controlplane.fleet import file as fleet_file
from headrace_controlplane.fleet.pools import Pool
from headrace_controlplane.fleet.problems import InvalidFleet, Problem
from headrace_controlplane.fleet.schema import read, setting
from headrace_router.pairing import Link
from headrace_sim.errors import SimulationError
from headrace_worker.perf.cards import CPU, Card, card_named, cpu_card
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.memory import MemoryDemand, StepShape, kv_bytes_per_token, workspace_bytes
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.shape_file import shape_named
from headrace_worker.perf.step import Roofline
from headrace_worker.perf.step_model import StepModel

GIB = 2**30
_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
DEFAULT_START_UP_S = 60.0


@dataclass(frozen=True)
class ModelSection:
    """What config.json would say."""

    shape: str = setting("", "built-in model whose dimensions it has, or a config.json; empty: the model's own name")


@dataclass(frozen=True)
class ScalingSection:
    """The autoscaler's temper (`headrace_controlplane.autoscale.ScalePolicy`)."""

    utilization: float = setting(0.8, "share of a replica's capacity that is planned with", minimum=0.01, maximum=1)
    down_after_s: float = setting(300.0, "how long less must be needed before replicas leave", minimum=0)
    queue_age_s: float = setting(2.0, "wait at which one replica more is asked for", minimum=0)
    capacity: float | None = setting(None, "declared tokens per second of one replica; nothing: searched", minimum=0)
    forecast: bool = setting(False, "plan for the load forecast for now + start-up time")
    forecast_quantile: float = setting(0.9, "quantile of the forecast", minimum=0.5, maximum=0.999)
    max_starting: int | None = setting(None, "most replicas that start at once", minimum=1, maximum=1000)
    max_down: int | None = setting(None, "most replicas that leave in one decision", minimum=1, maximum=1000)

    @classmethod
    def of(cls, pool: Pool) -> "ScalingSection | None":
        """The temper that the pool has in production; None for one whose size production does not choose."""
        temper = pool.scaling
        if not pool.is_scaled or temper.dry_run:
            return None
        return cls(
            utilization=temper.utilization,
            down_after_s=temper.down_after_s,
            queue_age_s=temper.queue_age_s,
            capacity=temper.capacity,
            forecast=temper.forecast > 0,
            forecast_quantile=temper.forecast,
            max_starting=temper.max_starting,
            max_down=temper.max_down,
        )


@dataclass(frozen=True)
class StepModelSection:
    """Coefficients that a replica publishes, in seconds per unit (`headrace_worker.perf.step_model.features_of`)."""

    step: float = setting(0.0, "of every step", minimum=0)
    tokens: float = setting(0.0, "of each row of its products", minimum=0)
    decode_rows: float = setting(0.0, "of each sequence that decodes", minimum=0)
    context_tokens: float = setting(0.0, "of each key that a decode reads", minimum=0)
    attention_pairs: float = setting(0.0, "of each pair of query and key in prompt chunks", minimum=0)
    tokens_beyond_knee: float = setting(0.0, "of each row above the knee", minimum=0)
    knee_tokens: int = setting(256, "rows at which products stop being bound by reading weights", minimum=1)

    @property
    def model(self) -> StepModel:
        per_unit = (self.step, self.tokens, self.decode_rows, self.context_tokens, self.attention_pairs)
        return StepModel((*per_unit, self.tokens_beyond_knee), self.knee_tokens)


@dataclass(frozen=True)
class PoolSection:
    """How the replicas of one pool run."""

    weights: str | None = setting(None, "what weights are stored as: fp8, int4, ...; nothing: as the pool says")
    kv: str | None = setting(None, "what KV is stored as; nothing: as the pool says")
    runtime_reserve_gib: float = setting(4.0, "memory of each device that is not for KV", minimum=0, maximum=1000)
    step_model: StepModelSection | None = setting(None, "step times as a replica fitted them; nothing: the roofline")
    host_ms: float = setting(0.0, "time of the host in each step", minimum=0, maximum=1000)
    front_ms: float = setting(0.0, "time of a request outside the engine: HTTP, tokens", minimum=0, maximum=60_000)
    kv_gb_per_s: float = setting(1.0, "rate at which KV comes in, for the role decode", minimum=1e-3)
    kv_latency_ms: float = setting(10.0, "what a transfer takes beside its bytes", minimum=0, maximum=60_000)
    overlap: bool = setting(False, "the next step is planned while one runs, as on a GPU: who comes waits for one more")
    overrun: float = setting(0.0, "overrun of the statistical class; 0: as the pool says", minimum=0, maximum=0.5)
    initial: int | None = setting(None, "replicas that are ready when it begins; nothing: min", minimum=0)
    scaling: ScalingSection | None = setting(None, "scale between min and max; nothing: as the pool's own scaling says")


@dataclass(frozen=True)
class NodesSection:
    """Equal nodes, each one fast-link domain."""

    count: int = setting(1, "nodes", minimum=1, maximum=100_000)
    devices: int = setting(8, "devices of a node", minimum=1, maximum=1024)


@dataclass(frozen=True)
class Fault:
    """One injected failure: `count` replicas of `pool` die, drain or slow down; or routers fall silent."""

    at_s: float = setting(..., "when", minimum=0)
    kind: Literal["kill", "drain", "slow", "blind"] = setting(..., "what; blind: no demand data")
    pool: str = setting("", "pool that it hits; empty: all")
    count: int = setting(1, "replicas that it hits", minimum=1)
    for_s: float = setting(60.0, "how long slow and blind last", minimum=0)
    factor: float = setting(2.0, "by how much steps slow down", minimum=1, maximum=1000)


@dataclass(frozen=True)
class SimulationSection:
    """What production does not need to be told."""

    models: dict[str, ModelSection] = setting({}, "dimensions by model")
    pools: dict[str, PoolSection] = setting({}, "how replicas run, by pool")
    nodes: NodesSection | None = setting(None, "where replicas may be placed; nothing: there is always room")
    faults: tuple[Fault, ...] = setting((), "injected failures")


@dataclass(frozen=True)
class SimPool:
    """One pool, resolved: settings, hardware and the number of KV pages of a replica."""

    name: str
    settings: Pool
    section: PoolSection
    roofline: Roofline
    num_pages: int
    step_model: StepModel | None = None
    """As measured; None: the roofline's."""

    @property
    def link(self) -> Link:
        """How KV comes in at its replicas."""
        per_token = kv_bytes_per_token(self.roofline.shape, self.roofline.kv)
        rate, latency_s = self.section.kv_gb_per_s * 1e9, self.section.kv_latency_ms / 1000
        return Link(per_token, self.settings.page_tokens, rate, latency_s)

    @property
    def max_sequence_tokens(self) -> int:
        context = self.settings.max_context_tokens or self.roofline.shape.max_context
        return min(context, self.settings.max_sequence_tokens or context)

    @property
    def num_initial(self) -> int:
        """Replicas that are ready when a run begins."""
        return self.settings.min if self.section.initial is None else self.section.initial

    @property
    def start_up_s(self) -> float:
        return DEFAULT_START_UP_S if self.settings.start_up_s is None else self.settings.start_up_s

    @property
    def scale_policy(self) -> ScalePolicy | None:
        scaling = self.section.scaling
        if scaling is None:
            return None
        return ScalePolicy(
            min=self.settings.min,
            max=self.settings.most,
            warm_reserve=self.settings.warm_reserve,
            utilization=scaling.utilization,
            down_after_s=scaling.down_after_s,
            queue_age_s=scaling.queue_age_s,
            max_starting=scaling.max_starting,
            max_down=scaling.max_down,
        )


@dataclass(frozen=True)
class SimFleet:
    """Everything that is simulated."""

    fleet: fleet_file.Fleet
    pools: dict[str, SimPool]
    section: SimulationSection


def parse_fleet(text: str) -> SimFleet:
    """The fleet of a file's text; SimulationError names everything that is wrong with it."""
    try:
        value = fleet_file.load(text)
        section_value = value.pop("simulation", None) if isinstance(value, dict) else None
        problems: list[Problem] = []
        fleet = read(fleet_file.Fleet, value, "", problems)
        section = read(SimulationSection, section_value, "simulation", problems)
        if fleet is None or section is None:
            raise InvalidFleet(problems)
    except InvalidFleet as error:
        raise SimulationError(str(error)) from None
    return resolve(fleet, section)


def resolve(fleet: fleet_file.Fleet, section: SimulationSection) -> SimFleet:
    """Names of the simulation section checked, hardware looked up."""
    _check_names("simulation.models", section.models, fleet.models)
    _check_names("simulation.pools", section.pools, fleet.pools)
    _check_names("simulation.faults: pool", {fault.pool: None for fault in section.faults if fault.pool}, fleet.pools)
    pools = {name: _pool(name, pool, section) for name, pool in fleet.pools.items()}
    return SimFleet(fleet, pools, section)


def _check_names(where: str, named: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in named:
        if name not in known:
            raise SimulationError(f"{where}: there is no {name!r} in the fleet")


def _pool(name: str, pool: Pool, section: SimulationSection) -> SimPool:
    here = section.pools.get(name, PoolSection())
    if here.scaling is None:
        here = replace(here, scaling=ScalingSection.of(pool))
    if here.overlap and pool.pp > 1:
        raise SimulationError(f"simulation.pools.{name}.overlap: is not there for a pipeline (pp is {pool.pp})")
    model = section.models.get(pool.model, ModelSection())
    try:
        shape = _shape(pool.model, model)
        layout = Layout(pool.tp, pool.pp)
        layout.check(shape)
        weights, kv = weight_precision(here.weights or _weights(pool)), kv_precision(here.kv or _kv(pool))
        roofline = Roofline(shape, weights, kv, _card(name, pool), layout)
        measured = None if here.step_model is None else here.step_model.model
    except PerfError as error:
        raise SimulationError(f"pools.{name}: {error}") from None
    num_pages = pool.num_pages or _num_pages(name, pool, here, roofline)
    return SimPool(name, pool, here, roofline, num_pages, measured)


def _weights(pool: Pool) -> str:
    return pool.quantization if pool.quantization in ("fp8", "int4") else _STORED[pool.precision]


def _kv(pool: Pool) -> str:
    return _STORED[pool.precision] if pool.kv_precision == "same" else pool.kv_precision


def _shape(model: str, section: ModelSection) -> ModelShape:
    try:
        return shape_named(section.shape or model)
    except PerfError as error:
        raise SimulationError(f"simulation.models.{model}.shape: {error.reason}") from None


def _card(name: str, pool: Pool) -> Card:
    if pool.card and pool.card != CPU:
        return card_named(pool.card, "card")
    if pool.device != "cpu":
        raise SimulationError(f"pools.{name}.card: says on which card the pool runs, and is missing")
    from headrace_worker.perf.cpu_probe import measure_cpu  # a second of work, for this card only

    return cpu_card(measure_cpu())


def _num_pages(name: str, pool: Pool, here: PoolSection, roofline: Roofline) -> int:
    """What is left of each device after weights and reserve, as `headrace plan` reckons it."""
    demand = MemoryDemand(roofline.shape, roofline.weights, roofline.kv, pool.page_tokens, pool.page_tokens)
    reserve = int(here.runtime_reserve_gib * GIB)
    if roofline.card.is_measured:
        reserve = workspace_bytes(roofline.shape, roofline.layout, roofline.card, StepShape(1024, 32))
    num_pages = demand.full_reservations(roofline.card, roofline.layout, reserve)
    if pool.kv_bytes is not None:
        per_page = min(each.kv_bytes_per_sequence for each in demand.per_device(roofline.card, roofline.layout, 0))
        num_pages = pool.kv_bytes // per_page
    if num_pages < 1:
        raise SimulationError(f"pools.{name}: {roofline.shape.name} leaves no room for KV on {roofline.card.name}")
    return num_pages
