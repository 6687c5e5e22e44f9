"""The default model through the engine loop, continuously batched, against what transformers generates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_worker.execution.known_answers import known_answer
from headrace_worker.execution.runner import RunnerError
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.execution.warm_up import check_known_tokens
from headrace_worker.scheduling.plan import Plan
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.models.smollm2 import CACHE, fetch_smollm2

ANSWERS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "models" / "goldens" / "smollm2.json").read_text()
)["answers"]
NUM_QUICK_TOKENS = 16


@pytest.fixture(scope="module")
def runner() -> Iterator[TorchRunner]:
    before = torch.get_num_threads()
    yield load(fetch_smollm2(), CACHE, num_pages=512, max_running=32)
    torch.set_num_threads(before)


def run_all(runner: TorchRunner, answers: list[dict[str, Any]], num_tokens: int) -> list[list[int]]:
    """Every answer's output; they enter two by two, so that prompts and decodes share steps."""
    bench = EngineBench(runner, max_chunk_tokens=48)
    handles = []
    for number, answer in enumerate(answers):
        handles.append(bench.submit(answer["prompt_ids"], num_tokens))
        if number % 2:
            bench.step()
    bench.run()
    return [bench.ids(handle) for handle in handles]


def test_batched_greedy_output_equals_transformers(runner: TorchRunner) -> None:
    quick = ANSWERS[:6]
    outputs = run_all(runner, quick, NUM_QUICK_TOKENS)
    assert outputs == [answer["output_ids"][:NUM_QUICK_TOKENS] for answer in quick]


def test_the_default_model_has_a_known_answer_and_another_one_is_refused(runner: TorchRunner) -> None:
    checkpoint = runner._checkpoint
    known = known_answer(checkpoint.name, checkpoint.weights.identity)
    assert known_answer(checkpoint.name, dict) is None
    assert known is not None
    assert list(known.prompt_ids) == ANSWERS[0]["prompt_ids"]
    assert list(known.output_ids) == ANSWERS[0]["output_ids"][: len(known.output_ids)]
    vocab_size = runner.describe().vocab_size

    def constant(plan: Plan) -> torch.Tensor:
        logits = torch.zeros(1, vocab_size)
        logits[0, known.output_ids[0]] = 1
        return logits

    with pytest.raises(RunnerError, match="known answer: token 1"):
        check_known_tokens(constant, known, 16)


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
def test_all_goldens_through_the_engine(deterministic: bool) -> None:
    runner = load(fetch_smollm2(), CACHE, num_pages=512, max_running=32, deterministic=deterministic)
    assert len(ANSWERS) == 20
    assert run_all(runner, ANSWERS, 64) == [answer["output_ids"] for answer in ANSWERS]
