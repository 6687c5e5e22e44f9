"""Section ``classes``: budgets in time of classes of requests. Knows no pool."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_controlplane.fleet.problems import Problem, join
from headrace_controlplane.fleet.schema import setting

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class SloClass:
    """Time from accept to the first text, and between two tokens."""

    NAMES = r"[a-z0-9][a-z0-9_-]{0,39}"

    ttft_ms: int = setting(..., "budget from accept to the first text", minimum=1, maximum=_DAY_MS)
    inter_token_ms: int = setting(0, "budget between two tokens; 0: none", minimum=0, maximum=_DAY_MS)
    max_queue_ms: int = setting(
        30_000, "longest wait where predicted prefill alone exceeds ttft_ms", minimum=1, maximum=_DAY_MS
    )
    delivery_reserve_ms: int = setting(20, "part of ttft_ms that is kept for delivery", minimum=0, maximum=_DAY_MS)
    total_ms: int = setting(0, "longest total time of a response; 0: none", minimum=0, maximum=_DAY_MS)
    target: float = setting(
        0.99, "share of responses that shall meet ttft_ms and inter_token_ms", minimum=0.001, maximum=0.99999
    )
    statistical: bool = setting(False, "admitted on expected length where a pool allows it, and preempted first")
    default: bool = setting(False, "class of tenants that name none; exactly one class is the default")

    def check(self, path: str) -> Iterator[Problem]:
        if self.delivery_reserve_ms >= self.ttft_ms:
            got = f"expected < ttft_ms ({self.ttft_ms}), got {self.delivery_reserve_ms}"
            yield Problem(join(path, "delivery_reserve_ms"), got)
