"""The shortest prompt worth moving: where the measured delay of streams crosses the measured time to move KV, beside
what the router makes of the coefficients and rates that replicas publish.

Delay: while streams decode at a worker, a prompt is computed beside them; what their tokens come later, added up, less
what they come later by the same prompt again: its KV is there then, as it is when it was moved, but for the last token.
Move: production's pull of as many pages, that are ready, from another process.
"""

import asyncio
import random
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import split_model
from benchmarks.split_workers import Answer, Decoder, Puller, Running, random_prompt, running, standing_source
from headrace_router.pairing import Link, break_even_tokens, interference_s
from headrace_router.prediction import StepCost
from headrace_router.scoring import View

NUM_STREAMS = 1
LENGTHS = (32, 64, 128, 192, 256, 384, 512)
NUM_ROUNDS, NUM_PULLS = 20, 20
NUM_PLAIN, NUM_AFTER = 16, 3
FLAGS = ("--engine", "torch", "--threads", "1", "--num-pages", "1024", "--max-running", "8")
Points = list[tuple[int, float]]


class BreakEven(NamedTuple):
    """Prompt tokens, as measured and as the router would say; None where moving never pays."""

    measured: float | None
    routers: int | None
    detail: str


class _Line(NamedTuple):
    start_s: float
    per_token_s: float

    def __str__(self) -> str:
        return f"{self.start_s * 1000:.3g} ms + {self.per_token_s * 1e6:.3g} us per token"


async def break_even(directory: Path) -> BreakEven:
    source = split_model.write(directory / "small")
    async with running(directory / "worker", "decode", "--source", str(source), *FLAGS) as worker:
        delay = _line(await _delays(worker))
        coefficients = dict((await worker.told("step_model")).step_model.coefficients)
        kv_bytes = worker.described.kv_bytes_per_token
    points, link = await _moves(kv_bytes)
    move, cost = _line(points), StepCost.of(coefficients)
    busy = View(id="d", epoch="e", model="m", revision="1", role="decode", num_running=NUM_STREAMS, cost=cost)
    theirs = _line([(length, interference_s(busy, length, 0)) for length in LENGTHS])
    per_token_s = kv_bytes / link.bytes_per_s
    detail = f"delay {delay}, router {theirs}; transfer {move}, router {_Line(link.latency_s, per_token_s)}"
    return BreakEven(_crossing(delay, move), break_even_tokens(busy, link), detail)


async def _delays(worker: Running) -> Points:
    """What moving its KV would have saved, by the length of the prompt: one point for each prompt."""
    decoder, chance = Decoder(worker), random.Random(9)
    found: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for _ in range(NUM_ROUNDS):
        streams = [decoder.stream(_prompt(chance, 16), 2000) for _ in range(NUM_STREAMS)]
        for length in chance.sample(LENGTHS, len(LENGTHS)):
            prompt = _prompt(chance, length)
            whole_s = await _delay_s(decoder, streams, prompt)
            found[length].append(whole_s - await _delay_s(decoder, streams, prompt))
        await decoder.end(*streams)
    await decoder.close()
    return [(length, value) for length, values in found.items() for value in values]


async def _delay_s(decoder: Decoder, streams: Sequence[Answer], prompt: list[int]) -> float:
    """Of all streams together, by one prompt beside them."""
    await _tokens_from_now(streams, NUM_PLAIN)
    begun = [len(stream.times_s) - 1 for stream in streams]
    await decoder.answer(prompt, 1, None)
    await _tokens_from_now(streams, NUM_AFTER)
    return sum(_late_s(stream, at) for stream, at in zip(streams, begun, strict=True))


async def _tokens_from_now(streams: Sequence[Answer], num_tokens: int) -> None:
    wanted = [len(stream.times_s) + num_tokens for stream in streams]
    while any(len(stream.times_s) < num for stream, num in zip(streams, wanted, strict=True)):
        assert not any(stream.over.is_set() for stream in streams), "a stream ended too soon"
        await asyncio.sleep(0.001)


def _late_s(stream: Answer, begun: int) -> float:
    """Beyond what the tokens since number `begun` would have taken at the pace of those before."""
    gaps_s = [after - before for before, after in pairwise(stream.times_s)]
    plain_s = median(gaps_s[max(0, begun - NUM_PLAIN) : begun])
    return sum(gap_s - plain_s for gap_s in gaps_s[begun:])


async def _moves(kv_bytes_per_token: int) -> tuple[Points, Link]:
    """One point for each pull, and what a replica that pulled them would publish."""
    num_pages = LENGTHS[-1] // split_model.SHAPE.page_tokens
    chance, found = random.Random(4), {length: list[float]() for length in LENGTHS}
    async with standing_source(num_pages, split_model.SHAPE) as source:
        puller = Puller(source, "grpc", num_pages, split_model.SHAPE)
        await puller.pull(_prompt(chance, LENGTHS[-1]))
        for _ in range(NUM_PULLS):
            for length in LENGTHS:
                found[length].append(await puller.pull(_prompt(chance, length)))
        rate = puller.pulls.rate
        await puller.pulls.close()
    link = Link(kv_bytes_per_token, split_model.SHAPE.page_tokens, rate.bytes_per_s, rate.latency_s)
    return [(length, value) for length, values in found.items() for value in values], link


def _prompt(chance: random.Random, num_tokens: int) -> list[int]:
    return random_prompt(chance, num_tokens, range(3, split_model.VOCAB_SIZE))


def _line(points: Points) -> _Line:
    """By the median of the slopes between any two points (Theil 1950, Sen 1968): few that had to wait do not count."""
    pairs = ((one, other) for one, other in combinations(points, 2) if one[0] != other[0])
    slope = median((later_s - sooner_s) / (longer - shorter) for (shorter, sooner_s), (longer, later_s) in pairs)
    return _Line(median(value - slope * length for length, value in points), slope)


def _crossing(delay: _Line, move: _Line) -> float | None:
    if delay.per_token_s <= move.per_token_s:
        return None
    return (move.start_s - delay.start_s) / (delay.per_token_s - move.per_token_s)
