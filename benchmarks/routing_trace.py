"""The Mooncake conversation trace through one LRU cache, and through 64 replicas with a cache each.

The fleet is simulated; what decides is the router's own `choose` over views of it, with an index that knows every cache
exactly. A replica computes prompts one after another and decodes all that runs; times come from step coefficients of a
70 B model on four H100 (prefill about 20 k tokens a second).
"""

import csv
import gzip
import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from headrace_router.deadlines import Budget
from headrace_router.in_flight import InFlight, Sent
from headrace_router.prediction import StepCost
from headrace_router.scoring import Ask, View, choose

TRACE = Path(__file__).parent / "data" / "mooncake" / "conversation.csv.gz"
BLOCK_TOKENS = 512
COST = StepCost(step=0.01, tokens=4.7e-5, decode_rows=5e-5, context_tokens=8e-9, attention_pairs=1.3e-9)
BUDGET = Budget(ttft_s=5.0, max_queue_s=30.0, inter_token_s=0.05)


@dataclass(frozen=True)
class Row:
    """One request; ``blocks`` are ids of its prompt's 512-token blocks."""

    at_s: float
    num_input: int
    num_output: int
    blocks: tuple[int, ...]


def load_trace() -> list[Row]:
    """All rows, in file order."""
    with gzip.open(TRACE, "rt") as lines:
        return [_row(each) for each in csv.DictReader(lines)]


def _row(each: dict[str, str]) -> Row:
    blocks: list[int] = []
    for part in each["hash_ids"].split():
        first, _, last = part.partition("-")
        blocks += range(int(first), int(last or first) + 1)
    at_s = int(each["timestamp_ms"]) / 1000
    return Row(at_s, int(each["input_length"]), int(each["output_length"]), tuple(blocks))


class LruCache:
    """At most ``capacity`` blocks; a request touches all of its blocks, tail first, so that heads are newest."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def run(self, blocks: Sequence[int]) -> int:
        """Leading blocks that are there."""
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def touch(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while self._capacity is not None and len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


@dataclass(frozen=True)
class Hits:
    """What one cache, or a fleet of them, hit."""

    num_blocks: int
    num_tokens: int
    num_input_tokens: int

    @property
    def share(self) -> float:
        return self.num_tokens / self.num_input_tokens


def replay_lru(rows: Iterable[Row], capacity: int | None) -> Hits:
    """One shared cache, in file order."""
    cache, num_blocks, num_tokens, num_input = LruCache(capacity), 0, 0, 0
    for row in rows:
        run = cache.run(row.blocks)
        num_blocks += run
        num_tokens += min(BLOCK_TOKENS * run, row.num_input)
        num_input += row.num_input
        cache.touch(row.blocks)
    return Hits(num_blocks, num_tokens, num_input)


@dataclass
class Replica:
    """One simulated replica; times in seconds of the trace."""

    name: str
    cache: LruCache
    num_pool_tokens: int
    free_at: float = 0.0
    waiting: deque[tuple[float, int]] = field(default_factory=deque)
    """End of its prefill, and tokens to compute, of each request that is not prefilled yet."""
    running: list[tuple[float, int]] = field(default_factory=list)
    """End, and tokens of KV, of each request; a heap."""
    num_queued_tokens: int = 0
    num_held_tokens: int = 0
    num_tokens: int = 0
    num_new_tokens: int = 0

    def advance(self, now: float) -> None:
        while self.waiting and self.waiting[0][0] <= now:
            self.num_queued_tokens -= self.waiting.popleft()[1]
        while self.running and self.running[0][0] <= now:
            self.num_held_tokens -= heapq.heappop(self.running)[1]

    def view(self, row: Row, num_recent_tokens: float) -> View:
        return View(
            id=self.name,
            epoch="e",
            model="m",
            revision="1",
            num_running=len(self.running),
            num_queued_tokens=self.num_queued_tokens,
            num_held_tokens=self.num_held_tokens,
            num_promised_tokens=self.num_held_tokens,
            num_pool_tokens=self.num_pool_tokens,
            num_recent_tokens=num_recent_tokens,
            num_hit_tokens=min(BLOCK_TOKENS * self.cache.run(row.blocks), row.num_input),
            cost=COST,
        )

    def serve(self, row: Row) -> int:
        """Takes the request; returns the leading blocks that were hit."""
        run = self.cache.run(row.blocks)
        num_hit = min(BLOCK_TOKENS * run, row.num_input)
        num_new, size = max(1, row.num_input - num_hit), row.num_input + row.num_output
        self.free_at = max(self.free_at, row.at_s) + COST.prefill_s(num_new, num_hit, 8192)
        self.waiting.append((self.free_at, num_new))
        step_s = COST.decode_s(len(self.running) + 1, self.num_held_tokens + size)
        heapq.heappush(self.running, (self.free_at + row.num_output * step_s, size))
        self.num_queued_tokens += num_new
        self.num_held_tokens += size
        self.num_tokens += size
        self.num_new_tokens += num_new
        self.cache.touch(row.blocks)
        return run


Strategy = Callable[[Row, list[Replica], int], int]
"""Index of the replica for a request, and its number in the trace."""


@dataclass(frozen=True)
class Outcome:
    """What a strategy came to: hits, and max over mean of tokens served and of tokens computed."""

    hits: Hits
    imbalance: float
    computed_imbalance: float


def replay_fleet(rows: Sequence[Row], num_replicas: int, capacity: int, strategy: Strategy) -> Outcome:
    """The trace at its own pace."""
    fleet = [Replica(f"w-{i}", LruCache(capacity), capacity * BLOCK_TOKENS) for i in range(num_replicas)]
    num_blocks = num_tokens = 0
    for number, row in enumerate(rows):
        for replica in fleet:
            replica.advance(row.at_s)
        run = fleet[strategy(row, fleet, number)].serve(row)
        num_blocks += run
        num_tokens += min(BLOCK_TOKENS * run, row.num_input)
    hits = Hits(num_blocks, num_tokens, sum(row.num_input for row in rows))
    return Outcome(
        hits,
        _imbalance([each.num_tokens for each in fleet]),
        _imbalance([each.num_new_tokens for each in fleet]),
    )


def _imbalance(amounts: list[int]) -> float:
    return max(amounts) * len(amounts) / sum(amounts)


class Scored:
    """The router: `choose`, and its own account of what it sent where."""

    def __init__(self, seed: int = 1) -> None:
        self._draws, self._in_flight = random.Random(seed), InFlight()

    def __call__(self, row: Row, fleet: list[Replica], number: int) -> int:
        ask = Ask(model="m", budget=BUDGET, num_prompt_tokens=row.num_input, max_output_tokens=row.num_output)
        views = [each.view(row, self._in_flight.num_recent_tokens(each.name, row.at_s)) for each in fleet]
        picked = choose(ask, views, self._draws.random()).picked
        assert picked is not None, "every replica is ready"
        num_new = max(1, row.num_input - picked.view.num_hit_tokens)
        # A report lists it at once: the views of this fleet are never old.
        self._in_flight.add(Sent(str(number), picked.view.id, "e", row.at_s, num_new, ask.num_bound_tokens))
        self._in_flight.release(str(number))
        return views.index(picked.view)


def round_robin(row: Row, fleet: list[Replica], number: int) -> int:
    return number % len(fleet)


def least_loaded(row: Row, fleet: list[Replica], number: int) -> int:
    """Fewest requests, the first of them."""
    return min(range(len(fleet)), key=lambda i: len(fleet[i].running))


def consistent_hashing(row: Row, fleet: list[Replica], number: int) -> int:
    """By the prompt's first two blocks; the first alone is the system prompt of all."""
    digest = blake2b(repr(row.blocks[:2]).encode(), digest_size=8).digest()
    return max(range(len(fleet)), key=lambda i: blake2b(digest + fleet[i].name.encode(), digest_size=8).digest())
