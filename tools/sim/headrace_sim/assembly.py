"""What replicas and routers of a simulated fleet are made of: limits, step times, predictors."""

from dataclasses import dataclass
from functools import lru_cache

from headrace_router.prediction import StepCost
from headrace_sim.fleet import SimFleet, SimPool
from headrace_sim.prefix_map import PrefixMap, hash_block
from headrace_sim.replica import END_ID, Make
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
    )


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
