"""`make bench-split`: what splitting costs and whether it changes anything, on two workers of this machine.

transports   production's pull of pages that are ready, beside a plain copy of as many bytes
replay       production's scheduler with an H100's step times
break-even   the router's shortest prompt worth moving, beside where measured delay and measured transfer cross
identity     100 random prompts, answered whole and split by the same decode replica

Each side of a copy reads and writes as many pages of memory, all of them touched before; the two take turns, and the
best of each counts.
"""

import argparse
import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks import report, split_break_even, split_replay
from benchmarks.engine_programs import CACHE
from benchmarks.report import Figure
from benchmarks.split_workers import (
    Decoder,
    Puller,
    Running,
    loopback_s,
    memcpy_s,
    random_prompt,
    running,
    standing_source,
)
from headrace_worker.allocator import keep_freed_memory
from headrace_worker.transfer.shape import KvShape

SOURCE = "smollm2-135m-instruct"
# Its KV.
SHAPE = KvShape(30, 3, 64, "float32", 16)
NUM_PROMPTS, NUM_OUT, NUM_AT_ONCE = 100, 8, 10
PULL_TOKENS, NUM_PULLS, NUM_ROUNDS = 1920, 5, 5
FLAGS = ("--source", SOURCE, "--deterministic", "true", "--threads", "1", "--kv-bytes", str(512 * 1024**2))


async def identity(directory: Path) -> list[Figure]:
    async with (
        running(directory / "p", "prefill", "--state-dir", str(CACHE), *FLAGS) as prefill,
        running(directory / "d", "decode", "--state-dir", str(CACHE), *FLAGS) as decode,
    ):
        num_same = await identical_answers(prefill, decode)
    return [Figure(f"identical answers of {NUM_PROMPTS}", num_same, NUM_PROMPTS, "exactly", "served whole")]


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


async def transports(_directory: Path) -> list[Figure]:
    """What production's two sides and the way between them take, without an engine."""
    num_pages = PULL_TOKENS // SHAPE.page_tokens
    async with standing_source(num_pages, SHAPE) as source:
        prompt = random_prompt(random.Random(4), PULL_TOKENS)
        inline, shared = (Puller(source, name, num_pages, SHAPE) for name in ("grpc", "shared_memory"))
        num_bytes = inline.num_bytes(prompt)
        inline_s = shared_s = raw_s = copy_s = float("inf")
        for _ in range(NUM_ROUNDS):
            raw_s = min(raw_s, await asyncio.to_thread(loopback_s, num_bytes, NUM_PULLS))
            inline_s = min(inline_s, await best_pull_s(inline, prompt))
            copy_s = min(copy_s, memcpy_s(num_bytes, NUM_PULLS))
            shared_s = min(shared_s, await best_pull_s(shared, prompt))
        await inline.pulls.close()
        await shared.pulls.close()
    gib = num_bytes / 2**30
    rates = f"{gib / inline_s:.2f} of {gib / raw_s:.2f} GiB/s, {num_bytes / 1e6:.0f} MB"
    shared_rates = f"{gib / shared_s:.2f} of {gib / copy_s:.2f} GiB/s"
    return [
        Figure("gRPC pull / raw loopback copy", raw_s / inline_s, 0.4, "at least", rates),
        Figure("shared memory pull / memcpy", copy_s / shared_s, 0.6, "at least", shared_rates),
    ]


async def best_pull_s(puller: Puller, prompt: list[int]) -> float:
    return min([await puller.pull(prompt) for _ in range(NUM_PULLS)])


async def replay(_directory: Path) -> list[Figure]:
    whole, apart = split_replay.p99(split_replay.one_pool()), split_replay.p99(split_replay.split())
    baseline = f"two whole H100 replicas: {whole * 1000:.1f} ms; split: {apart * 1000:.1f} ms"
    return [Figure("p99 gap between tokens, split / one pool of as many GPUs", apart / whole, 0.6, "at most", baseline)]


async def break_even(directory: Path) -> list[Figure]:
    found = await split_break_even.break_even(directory)
    name = "break-even length, |router / measured - 1|"
    if found.measured is None or found.measured <= 0 or found.routers is None:
        reason = f"no crossing: router {found.routers}, measured {found.measured}; {found.detail}"
        return [Figure(name, None, 0.25, "at most", reason=reason)]
    baseline = f"router {found.routers}, measured {found.measured:.0f} tokens; {found.detail}"
    return [Figure(name, abs(found.routers / found.measured - 1), 0.25, "at most", baseline)]


PARTS: dict[str, Callable[[Path], Awaitable[list[Figure]]]] = {
    "transports": transports,
    "replay": replay,
    "break-even": break_even,
    "identity": identity,
}


async def measure(names: list[str], directory: Path) -> list[Figure]:
    figures = []
    for name in names:
        (directory / name).mkdir()
        for figure in await PARTS[name](directory / name):
            print(f"{figure.figure}: {figure.measured} ({figure.reason or figure.baseline})", flush=True)
            figures.append(figure)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one part, nothing written")
    only = parser.parse_args().only
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure([only] if only else list(PARTS), Path(directory)))
    if not only:
        report.write("split", figures)


if __name__ == "__main__":
    main()
