"""The shortest prompt worth moving: where the measured delay of a stream crosses the measured time to move KV, and what
the router makes of the coefficients and rates that replicas publish.

One engine is stepped by hand: while streams decode, a prompt is computed beside them, and each step's time beyond that
of a step without prompt is what every stream loses.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.engine_driver import Drive, OwnModel
from headrace_router.pairing import Link, interference_s
from headrace_router.prediction import StepCost
from headrace_router.scoring import View

NUM_STREAMS = 2
LENGTHS = (32, 64, 128, 256)
NUM_ROUNDS = 5
NUM_PLAIN_STEPS = 12


class TransferLine(NamedTuple):
    """Measured transfers (prompt tokens, seconds), and what the replica made of them for the router."""

    points: tuple[tuple[int, float], ...]
    bytes_per_s: float
    latency_s: float


class _Line(NamedTuple):
    start_s: float
    per_token_s: float


def break_even(source: str, state_dir: Path, transfers: TransferLine) -> tuple[float, float]:
    """Prompt tokens: as measured, and as the router would say, neither rounded nor held above two pages."""
    delays, coefficients = _delays(source, state_dir)
    delay, move = _fit(delays), _fit(transfers.points)
    measured = _crossing(delay, move)
    view = View(
        id="d",
        epoch="e",
        model="m",
        revision="1",
        role="decode",
        num_running=NUM_STREAMS,
        cost=StepCost.of(coefficients),
    )
    link = Link(46_080, 1, transfers.bytes_per_s, transfers.latency_s)
    theirs = _fit([(num, interference_s(view, num, 0)) for num in LENGTHS])
    moves = _fit([(num, link.transfer_s(num)) for num in LENGTHS])
    return measured, _crossing(theirs, moves)


def _delays(source: str, state_dir: Path) -> tuple[list[tuple[int, float]], dict[str, float]]:
    """Delay of all streams together by prompt length, and the step coefficients that the engine has learnt."""
    model = OwnModel(source, state_dir)
    drive = model.start(max_chunk_tokens=512)
    chance = random.Random(9)
    for _ in range(NUM_STREAMS):
        drive.submit(model.random_prompt(chance, 16), 1500)
    measured: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for _ in range(NUM_ROUNDS):
        for length in LENGTHS:
            plain_s = median([_step_s(drive) for _ in range(NUM_PLAIN_STEPS)])
            handle = drive.submit(model.random_prompt(chance, length), 1)
            beyond_s = 0.0
            while not drive.times[handle]:
                beyond_s += _step_s(drive) - plain_s
            measured[length].append(NUM_STREAMS * beyond_s)
    coefficients = drive.engine.step_model.to_mapping()
    return [(length, median(values)) for length, values in measured.items()], coefficients


def _step_s(drive: Drive) -> float:
    started_s = time.perf_counter()
    drive.step()
    return time.perf_counter() - started_s


def _fit(points: Sequence[tuple[int, float]]) -> _Line:
    """Least squares."""
    num = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / num, sum(y for _, y in points) / num
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return _Line(mean_y - slope * mean_x, slope)


def _crossing(rising: _Line, move: _Line) -> float:
    return (move.start_s - rising.start_s) / (rising.per_token_s - move.per_token_s)
