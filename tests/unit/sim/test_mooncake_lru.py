"""The page pool of production's scheduler is an exact LRU: the golden rows of the Mooncake trace come out to the block.

Golden rows: replay in file order; hit = longest leading run of blocks present; then touch or insert all of the
request's blocks, tail first, and evict the least recent down to capacity. Computed independently of this code.
"""

from pathlib import Path

import pytest

from headrace_worker.scheduling.blocks import PageIdentity, PagePool
from headrace_worker.scheduling.page_events import PageEventLog, PageKey
from headrace_workload.traces import read_trace

TRACE = Path(__file__).parents[3] / "benchmarks/data/mooncake/conversation.csv.gz"
PROMPTS = [[(part.seed, part.num_tokens) for part in arrival.segments] for arrival in read_trace(TRACE)]
INFINITE = 200_000


def replay(capacity: int) -> tuple[int, int]:
    """Blocks and prompt tokens that were hit."""
    pool = PagePool(capacity, PageEventLog(1, max_undrained=1))
    num_blocks = num_tokens = 0
    for prompt in PROMPTS:
        pages: list[int] = []
        for place, (block, size) in enumerate(prompt):
            identity = PageIdentity(PageKey(b"", block.to_bytes(8, "little")), b"", b"")
            page = pool.find(identity) if place == len(pages) else None
            if page is None:
                break
            pool.share(page)
            pages.append(page)
            num_blocks += 1
            num_tokens += size
        for block, _ in prompt[len(pages) :]:
            page = pool.allocate()
            pool.publish(page, PageIdentity(PageKey(b"", block.to_bytes(8, "little")), b"", b""))
            pages.append(page)
        for page in reversed(pages):
            pool.release(page)
    return num_blocks, num_tokens


@pytest.mark.parametrize(
    ("capacity", "num_blocks", "token_share"),
    [
        (1_000, 12_847, 0.0454),
        (3_000, 18_850, 0.0666),
        (10_000, 61_046, 0.2157),
        (30_000, 93_978, 0.3322),
        (50_000, 102_290, 0.3615),
        (INFINITE, 105_710, 0.3736),
    ],
)
def test_golden_row(capacity: int, num_blocks: int, token_share: float) -> None:
    found, num_tokens = replay(capacity)
    assert found == num_blocks
    total = sum(size for prompt in PROMPTS for _, size in prompt)
    assert num_tokens / total == pytest.approx(token_share, abs=5e-5)


def test_the_trace_is_the_published_one() -> None:
    assert (len(PROMPTS), sum(map(len, PROMPTS))) == (12_031, 288_500)
