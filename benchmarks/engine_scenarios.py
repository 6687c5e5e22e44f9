"""What only our engine is asked: prefix hits, chunked prompts beside decodes, continuous beside static batches.

Each scenario returns its numbers; both sides of a ratio are measured by turns, so that a busy moment hits both.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping
from statistics import median

from benchmarks.engine_driver import Drive, OwnModel

NUM_ROUNDS = 3
PREFIX_TOKENS, PROMPT_TOKENS = 1024, 1100
NUM_DECODERS, LONG_TOKENS, DECODER_TOKENS = 8, 1500, 48
# The budget between two tokens, as a share of the gap that a whole prompt makes.
BUDGET_SHARE = 0.2
BATCH, NUM_REQUESTS = 16, 128
# Prompts of a chat's length; outputs as they are: half are short, and one in a batch is long (lognormal, in tokens).
PROMPT_RANGE, OUTPUT_RANGE, OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION = (16, 64), (4, 384), 3.3, 1.2


def prefix_hit(model: OwnModel) -> Mapping[str, float]:
    """Time to the first token of a prompt that nobody has seen, and of one that shares its first 1,024 tokens."""
    chance = random.Random(1)
    miss_s: list[float] = []
    hit_s: list[float] = []
    drive = model.start()
    for _ in range(NUM_ROUNDS):
        prefix = model.random_prompt(chance, PREFIX_TOKENS)
        for found in (miss_s, hit_s):
            tail = model.random_prompt(chance, PROMPT_TOKENS - PREFIX_TOKENS)
            handle = drive.submit(prefix + tail, 1)
            found.append(drive.run())
            expected = PREFIX_TOKENS if found is hit_s else 0
            assert drive.cached[handle] == expected, f"{drive.cached[handle]} cached tokens, not {expected}"
    return {"miss_s": median(miss_s), "hit_s": median(hit_s)}


def chunked_prefill(model: OwnModel) -> Mapping[str, float]:
    """Eight streams decode when a long prompt comes: whole, and cut to the streams' inter-token budget."""
    chance = random.Random(2)
    gaps: dict[str, list[float]] = {"whole": [], "chunked": []}
    totals: dict[str, list[float]] = {"whole": [], "chunked": []}
    for _ in range(NUM_ROUNDS):
        for way, found in gaps.items():
            budget_s = BUDGET_SHARE * median(gaps["whole"]) if way == "chunked" else None
            gap_s, total_s = _long_prompt_enters(model, chance, budget_s)
            found.append(gap_s)
            totals[way].append(total_s)
    return {f"{way}_gap_s": median(found) for way, found in gaps.items()} | {
        f"{way}_total_s": median(found) for way, found in totals.items()
    }


def _long_prompt_enters(model: OwnModel, chance: random.Random, budget_s: float | None) -> tuple[float, float]:
    """(99th percentile of the decoders' gaps while the prompt enters, seconds until all is done)."""
    drive = model.start(max_chunk_tokens=2048, max_batch_tokens=4096)
    decoders = [
        drive.submit(model.random_prompt(chance, 64), DECODER_TOKENS, inter_token_s=budget_s)
        for _ in range(NUM_DECODERS)
    ]
    drive.run_until(lambda: all(len(drive.times[handle]) >= DECODER_TOKENS // 4 for handle in decoders))
    started_s = time.perf_counter()
    long = drive.submit(model.random_prompt(chance, LONG_TOKENS), 1)
    drive.run()
    entered_s = drive.times[long][0]
    gaps = sorted(gap for handle in decoders for gap in _gaps(drive, handle, started_s, entered_s))
    return gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))], max(map(max, drive.times.values())) - started_s


def _gaps(drive: Drive, handle: int, after_s: float, until_s: float) -> list[float]:
    """Gaps of one stream that end within (after, until]."""
    times = drive.times[handle]
    return [late - early for early, late in itertools.pairwise(times) if after_s < late <= until_s]


def batching(model: OwnModel) -> Mapping[str, float]:
    """The same mixed-length load, continuously batched, and in static batches that end with their longest member.

    Eight batches of it: at the end of a load both ways run part-filled steps, and what is meant is a load that goes on.
    """
    chance = random.Random(3)
    load = [(model.random_prompt(chance, chance.randint(*PROMPT_RANGE)), _draw_length(chance))
            for _ in range(NUM_REQUESTS)]  # fmt: skip
    settings = {"max_running": BATCH, "max_waiting": NUM_REQUESTS}
    drive = model.start(**settings)
    for ids, num_out in load:
        drive.submit(ids, num_out)
    continuous_s = drive.run()
    drive, static_s = model.start(**settings), 0.0
    for first in range(0, NUM_REQUESTS, BATCH):
        for ids, num_out in load[first : first + BATCH]:
            drive.submit(ids, num_out)
        static_s += drive.run()
    num_tokens = sum(num_out for _, num_out in load)
    return {"continuous_s": continuous_s, "static_s": static_s, "num_tokens": num_tokens}


def _draw_length(chance: random.Random) -> int:
    low, high = OUTPUT_RANGE
    return max(low, min(high, round(chance.lognormvariate(OUTPUT_LOG_MEAN, OUTPUT_LOG_DEVIATION))))


SCENARIOS: dict[str, Callable[[OwnModel], Mapping[str, float]]] = {
    "prefix_hit": prefix_hit,
    "chunked_prefill": chunked_prefill,
    "batching": batching,
}
