"""How many KV pages a replica has: every page lies on all ranks, each with its own layers and heads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.runner import RunnerError
from headrace_worker.execution.steps import RankSizes


def count_pages(config: WorkerConfig, sizes: Sequence[RankSizes]) -> int:
    """What was asked for, or what the memory holds, less the null page. Raises RunnerError if that is none.

    A budget that was asked for, and that of a CPU, is shared by all ranks; on GPUs each rank has its own, and the
    poorest one decides.
    """
    if config.num_pages is not None:
        return config.num_pages
    if config.kv_bytes is not None or config.device == "cpu":
        budget = min(rank.budget_bytes for rank in sizes)
        page_bytes = sum(rank.page_bytes for rank in sizes)
    else:
        budget, page_bytes = min(
            ((rank.budget_bytes, rank.page_bytes) for rank in sizes), key=lambda rank: rank[0] / rank[1]
        )
    num_pages = budget // page_bytes - 1
    if num_pages < 1:
        raise RunnerError(f"kv_bytes: {budget} bytes hold no page; at least {2 * page_bytes} are needed")
    return num_pages
