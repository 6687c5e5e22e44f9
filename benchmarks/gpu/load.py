"""A batch of requests through the whole engine: the tokens, the time, and what the host spent between steps."""

from __future__ import annotations

import random
import time
from array import array
from dataclasses import dataclass

import torch

from benchmarks.gpu.random_model import hash_block
from headrace_worker.build import build_engine
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.events import Tokens
from headrace_worker.scheduling.request import Request, SamplingParams


@dataclass(frozen=True)
class Ran:
    """`device_share` is the part of the time in which the device computed, None where it cannot be told."""

    num_tokens: int
    took_s: float
    num_steps: int
    device_share: float | None


def requests_of(count: int, shortest: int, longest: int, vocab_size: int) -> list[tuple[list[int], int]]:
    """nano-vllm's shape: lengths of prompt and output uniform, from one seed."""
    chance = random.Random(0)
    return [
        (
            [chance.randrange(1, vocab_size) for _ in range(chance.randint(shortest, longest))],
            chance.randint(shortest, longest),
        )
        for _ in range(count)
    ]


def run_load(config: WorkerConfig, runner: TorchRunner, load: list[tuple[list[int], int]]) -> Ran:
    """All are there at the start; temperature 0.6, end tokens ignored."""
    engine = build_engine(config, runner, hash_block)
    for handle, (ids, max_output) in enumerate(load, 1):
        params = SamplingParams(temperature=0.6, ignore_eos=True, seed=handle)
        engine.submit(Request(handle, f"r{handle}", handle, array("I", ids), max_output, 1, params))
    busy = _Busy() if config.device == "cuda" else None
    started = time.perf_counter()
    num_tokens = num_steps = 0
    while engine.has_work:
        output = engine.step()
        if output is None:
            continue
        num_steps += 1
        num_tokens += sum(len(event.token_ids) for event in output.events if isinstance(event, Tokens))
        if busy is not None:
            busy.look()
    took_s = time.perf_counter() - started
    wanted = sum(max_output for _, max_output in load)
    assert num_tokens == wanted, f"{num_tokens} tokens came and {wanted} were asked for"
    return Ran(num_tokens, took_s, num_steps, busy.share if busy is not None else None)


class _Busy:
    """Looks at each step's end whether the device still has work: it does, unless the host was too slow."""

    def __init__(self) -> None:
        self._looked = self._busy = 0

    def look(self) -> None:
        self._looked += 1
        self._busy += not torch.cuda.current_stream().query()

    @property
    def share(self) -> float:
        return self._busy / max(1, self._looked)
