"""Groups whose weights are kept in codes: the ranks quantize as one rank does."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_worker.execution.torch_runner import TorchRunner
from tests.unit.worker.execution.engine_bench import EngineBench
from tests.unit.worker.parallel.group_model import group, prompt, write_model

NUM_PROMPTS = 12


def drawn(runner: TorchRunner, max_output: int) -> tuple[list[list[int]], list[float]]:
    """Greedy tokens of some prompts, and the chances of all of them in a row."""
    bench = EngineBench(runner, max_chunk_tokens=32)
    handles = [bench.submit(prompt(5 + 3 * salt, salt), max_output, logprobs=True) for salt in range(NUM_PROMPTS)]
    bench.run()
    chances = [entry.logprob for handle in handles for entry in bench.logprobs(handle)]
    return [bench.ids(handle) for handle in handles], chances


def alone_and_together(source: Path, quantization: str, max_output: int) -> list[tuple[list[list[int]], list[float]]]:
    found = []
    for tp in (1, 2):
        with group(source, tp, quantization=quantization) as runner:
            assert runner.describe().quantization == quantization
            found.append(drawn(runner, max_output))
    return found


def test_two_ranks_round_to_fp8_as_one_does(tmp_path: Path) -> None:
    """Each has half of a row's inputs, and the largest of the whole row sets the scale.

    Sums are rounded in another order, which moves an activation over the edge of a code now and then, and what follows
    with it. So one token of each prompt, through one layer: all but a few have the same codes. With scales of their own
    none would.
    """
    source = write_model(tmp_path / "wide", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    (ids, chances), (own_ids, own_chances) = alone_and_together(source, "fp8", 1)
    apart = [abs(one - other) for one, other in zip(chances, own_chances, strict=True)]
    same = [number for number, difference in enumerate(apart) if difference < 1e-4]
    assert len(same) >= 0.75 * NUM_PROMPTS and max(apart) < 0.5, apart
    assert [ids[number] for number in same] == [own_ids[number] for number in same]


def test_two_ranks_draw_what_one_does_with_int4(tmp_path: Path) -> None:
    """Groups of 128 inputs: a row has two of them, a rank one."""
    source = write_model(tmp_path / "wide", hidden_size=256, intermediate_size=256)
    (ids, chances), (own_ids, own_chances) = alone_and_together(source, "int4", 8)
    assert own_ids == ids
    assert own_chances == pytest.approx(chances, abs=1e-3)
