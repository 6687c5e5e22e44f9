"""What replicas and routers of a simulated fleet are made of: limits, step times, predictors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from headrace_router.prediction import StepCost
from headrace_sim.fleet import SimFleet, SimPool
from headrace_sim.prefix_map import PrefixMap, hash_block
from headrace_sim.replica import END_ID, Make
from headrace_sim.step_timer import StepTimer
from headrace_worker.perf.prior import prior_model
from headrace_worker.scheduling.limits import Limits
from headrace_worker.scheduling.prefix import HashBlock

VOCAB = 32_000


@dataclass(frozen=True)
class Options:
    """How a run is done. `shares_prefixes` False skips hashing where no two prompts begin alike: only time is saved.

    `drain`: go on after the last arrival until every request has ended. The rest are policies that production does not
    have, to compare with: `queue_first` lets a request wait for its whole TTFT budget whatever its prompt takes,
    `static_batching` admits a batch only when the last one has ended.
    """

    seed: int = 0
    fast_forward: bool = True
    shares_prefixes: bool = True
    cache_blind: bool = False
    sample_s: float = 1.0
    drain: bool = True
    queue_first: bool = False
    static_batching: bool = False


def make_of(pool: SimPool, options: Options) -> Make:
    """The replicas of a pool."""
    settings = pool.settings
    # A scheduler without the statistical class has no such limit.
    more: dict[str, Any] = {"overrun": pool.section.overrun} if pool.section.overrun else {}
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
        **more,
    )
    timer = StepTimer(pool.roofline, pool.section.host_ms / 1000)
    hash_function = hash_block if options.shares_prefixes else _all_differ()
    predictor = prior_model(pool.roofline)
    return Make(limits, timer, hash_function, predictor, options.fast_forward, options.static_batching)


def cost_of(pool: SimPool) -> StepCost:
    """What routers would be told of the pool's step times."""
    return StepCost.of(prior_model(pool.roofline).to_mapping())


def prefix_map(fleet: SimFleet) -> PrefixMap:
    """One index for all pools; they must agree on the page size."""
    sizes = {pool.settings.page_tokens for pool in fleet.pools.values()}
    return PrefixMap(max(sizes))


def _all_differ() -> HashBlock:
    """No two blocks are ever the same: for workloads in which none are."""
    numbers = count()

    def differ(parent: bytes, ids: Sequence[int]) -> bytes:
        return next(numbers).to_bytes(16, "little")

    return differ
