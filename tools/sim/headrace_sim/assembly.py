"""What replicas and routers of a simulated fleet are made of: limits, step times, predictors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from headrace_router.prediction import StepCost
from headrace_sim.clock import Clock
from headrace_sim.fleet import SimFleet, SimPool
from headrace_sim.job import Job
from headrace_sim.pipelined import PipelinedReplica
from headrace_sim.prefix_map import PrefixMap, hash_block
from headrace_sim.replica import END_ID, Make, Replica, Transfers
from headrace_sim.stage_timer import FittedStageTimer, Pipeline, StageTimer, StageTimes
from headrace_sim.step_timer import FittedTimer, StepTimer
from headrace_worker.perf.prior import prior_model
from headrace_worker.perf.step import Roofline
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.limits import Limits

VOCAB = 32_000


@lru_cache
def _prior(roofline: Roofline) -> StepModel:
    return prior_model(roofline)


@dataclass(frozen=True)
class Options:
    """How a run is done. Without `shares_prefixes` no page is kept for later prompts, for no two begin alike.

    `drain`: go on after the last arrival until every request has ended. The rest are policies that production does not
    have, to compare with: `queue_first` lets a request wait for its whole TTFT budget whatever its prompt takes,
    `static_batching` admits a batch only when the last one has ended, `optimistic` admits on the memory that is in use,
    promises nothing, and computes again what it had to preempt.
    """

    seed: int = 0
    fast_forward: bool = True
    shares_prefixes: bool = True
    cache_blind: bool = False
    sample_s: float = 1.0
    drain: bool = True
    queue_first: bool = False
    static_batching: bool = False
    optimistic: bool = False


def make_of(pool: SimPool, options: Options) -> Make:
    """The replicas of a pool."""
    settings = pool.settings
    overrun = 0.5 if options.optimistic else pool.section.overrun or settings.statistical_overrun
    limits = Limits(
        num_pages=pool.num_pages,
        vocab_size=VOCAB,
        page_tokens=settings.page_tokens,
        max_sequence_tokens=pool.max_sequence_tokens,
        max_running=settings.max_running,
        max_waiting=settings.max_waiting,
        max_step_tokens=settings.max_batch_tokens,
        max_chunk_tokens=settings.max_chunk_tokens,
        end_token_ids=frozenset({END_ID}),
        caches_prefixes=options.shares_prefixes,
        overrun=overrun,
        depth=settings.pp,
    )
    host_s = pool.section.host_ms / 1000
    measured = pool.step_model
    timer = StepTimer(pool.roofline, host_s) if measured is None else FittedTimer(measured, host_s)
    return Make(
        limits,
        timer,
        hash_block,
        step_model_of(pool),
        fast_forward=options.fast_forward,
        static_batching=options.static_batching,
        plans_ahead=pool.section.overlap,
        optimistic=options.optimistic,
        pipeline=_pipeline_of(pool) if settings.pp > 1 else None,
    )


def _pipeline_of(pool: SimPool) -> Pipeline:
    stages = StageTimer(pool.roofline)
    timer: StageTimes = stages if pool.step_model is None else FittedStageTimer(pool.step_model, stages)
    return Pipeline(timer, pool.settings.pp, pool.section.host_ms / 1000, pool.settings.device == "cpu")


def replica_of(
    replica_id: str, pool: str, make: Make, clock: Clock, on_ended: Callable[[Job], None], transfers: Transfers
) -> Replica:
    """One replica; of several stages, one that has several plans in flight."""
    kind = Replica if make.pipeline is None else PipelinedReplica
    return kind(replica_id, pool, make, clock, on_ended, transfers)


def cost_of(pool: SimPool) -> StepCost:
    """What routers would be told of the pool's step times."""
    return StepCost.of(step_model_of(pool).to_mapping())


def step_model_of(pool: SimPool) -> StepModel:
    """What its replicas predict their steps with."""
    return pool.step_model or _prior(pool.roofline)


def prefix_map(fleet: SimFleet) -> PrefixMap:
    """One index for all pools; they must agree on the page size."""
    sizes = {pool.settings.page_tokens for pool in fleet.pools.values()}
    return PrefixMap(max(sizes))
