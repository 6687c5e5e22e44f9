"""`make bench-split`: what splitting costs and whether it changes anything, on two workers of this machine.

identity     100 random prompts, answered whole and split by the same decode replica
transports   production's pull of a cached prompt, beside a plain copy of as many bytes
break-even   the router's shortest prompt worth moving, beside where the measured lines cross
replay       production's scheduler with an H100's step times
"""

import asyncio
import random
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import report, split_break_even, split_replay
from benchmarks.report import Figure
from benchmarks.split_workers import (
    Decoder,
    Puller,
    Running,
    loopback_s,
    memcpy_s,
    random_prompt,
    running,
    shape_of,
    standing_source,
)

SOURCE = "smollm2-135m-instruct"
SHAPE = shape_of(30, 3, 64, "float32")
NUM_PROMPTS, NUM_OUT, NUM_AT_ONCE = 100, 8, 10
PULL_TOKENS, NUM_PULLS, NUM_ROUNDS = 1920, 5, 3
SHORT_PULLS = (32, 128, 512)
FLAGS = ("--source", SOURCE, "--deterministic", "true", "--threads", "1", "--kv-bytes", str(512 * 1024**2))


async def identical_answers(prefill: Running, decode: Running) -> int:
    """Of NUM_PROMPTS random prompts, how many give the same ids split as whole, ten at a time."""
    chance, decoder, num_same = random.Random(3), Decoder(decode), 0
    for number in range(0, NUM_PROMPTS, NUM_AT_ONCE):
        prompts = [random_prompt(chance, chance.randint(33, 130)) for _ in range(NUM_AT_ONCE)]
        whole = await asyncio.gather(*(decoder.answer(prompt, NUM_OUT, None) for prompt in prompts))
        apart = await asyncio.gather(*(decoder.answer(prompt, NUM_OUT, prefill) for prompt in prompts))
        num_same += sum(one == other for one, other in zip(whole, apart, strict=True))
        print(f"{number + NUM_AT_ONCE} of {NUM_PROMPTS} prompts, {num_same} alike", flush=True)
    await decoder.close()
    return num_same


async def best_pull_s(puller: Puller, prompt: list[int]) -> float:
    return min([await puller.pull(prompt) for _ in range(NUM_PULLS)])


async def transports() -> tuple[list[Figure], split_break_even.TransferLine]:
    """Pulls of pages that are ready: what production's two sides and the way between them take, without an engine."""
    num_pages = PULL_TOKENS // 16
    async with standing_source(num_pages) as source:
        chance = random.Random(4)
        prompt = random_prompt(chance, PULL_TOKENS)
        inline, shared = (Puller(source, name, num_pages, SHAPE) for name in ("grpc", "shared_memory"))
        num_bytes = inline.num_bytes(prompt)
        inline_s = shared_s = raw_s = copy_s = float("inf")
        for _ in range(NUM_ROUNDS):
            inline_s = min(inline_s, await best_pull_s(inline, prompt))
            raw_s = min(raw_s, await asyncio.to_thread(loopback_s, num_bytes))
            shared_s = min(shared_s, await best_pull_s(shared, prompt))
            copy_s = min(copy_s, memcpy_s(num_bytes))
        points = [(PULL_TOKENS, inline_s)]
        for num_tokens in SHORT_PULLS:
            short = random_prompt(chance, num_tokens)
            points.append((num_tokens, median([await inline.pull(short) for _ in range(NUM_PULLS)])))
        rate = inline.pulls.rate
        line = split_break_even.TransferLine(tuple(points), rate.bytes_per_s, rate.latency_s)
        await inline.pulls.close()
        await shared.pulls.close()
    gib = num_bytes / 2**30
    rates = f"{gib / inline_s:.2f} of {gib / raw_s:.2f} GiB/s, {num_bytes / 1e6:.0f} MB"
    shared_rates = f"{gib / shared_s:.2f} of {gib / copy_s:.2f} GiB/s"
    return [
        Figure("gRPC pull / raw loopback copy", raw_s / inline_s, 0.4, "at least", rates),
        Figure("shared memory pull / memcpy", copy_s / shared_s, 0.6, "at least", shared_rates),
    ], line


def replay() -> Figure:
    whole, apart = split_replay.p99(split_replay.one_pool()), split_replay.p99(split_replay.split())
    baseline = f"two whole H100 replicas: {whole * 1000:.1f} ms; split: {apart * 1000:.1f} ms"
    return Figure("p99 gap between tokens, split / one pool of as many GPUs", apart / whole, 0.6, "at most", baseline)


async def measure(directory: Path) -> list[Figure]:
    rates, line = await transports()
    figures = [*rates, replay()]
    for one in figures:
        print(f"{one.figure}: {one.measured:.3g} ({one.baseline})", flush=True)
    async with (
        running(directory / "p", "prefill", *FLAGS) as prefill,
        running(directory / "d", "decode", *FLAGS) as decode,
    ):
        num_same = await identical_answers(prefill, decode)
    figures.append(Figure(f"identical answers of {NUM_PROMPTS}", num_same, NUM_PROMPTS, "exactly", "served whole"))
    measured, routers = split_break_even.break_even(SOURCE, directory / "models", line)
    baseline = f"router {routers:.1f}, measured {measured:.1f} tokens"
    error = abs(routers / measured - 1)
    figures.append(Figure("break-even length, |router / measured - 1|", error, 0.25, "at most", baseline))
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure(Path(directory)))
    report.write("split", figures)


if __name__ == "__main__":
    main()
