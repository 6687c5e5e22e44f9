"""The real engine loop over tiny models: output does not depend on batch, chunks, cache or neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_worker.config import ConfigError
from headrace_worker.execution.runner import RunnerError
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.cancel import Cancel
from tests.unit.worker.execution.engine_bench import EngineBench, load, poison
from tests.unit.worker.models.tiny import VOCAB_SIZE, write_tiny


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchRunner]:
    """Deterministic: the same bits alone, batched, chunked and on a prefix hit."""
    folder = tmp_path_factory.mktemp("tiny")
    before = torch.get_num_threads()
    yield load(write_tiny(folder / "llama", "llama"), folder, deterministic=True)
    torch.set_num_threads(before)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * index + 3 + salt * 11) % VOCAB_SIZE for index in range(length)]


def alone(runner: TorchRunner, ids: list[int], max_output: int, **sampling: Any) -> list[int]:
    bench = EngineBench(runner)
    handle = bench.submit(ids, max_output, **sampling)
    bench.run()
    return bench.ids(handle)


def test_neighbours_change_nothing(runner: TorchRunner) -> None:
    """B102, in deterministic mode."""
    expected = alone(runner, prompt(21), 20)
    for num_neighbours in range(1, 8):
        bench = EngineBench(runner)
        for number in range(num_neighbours):
            bench.submit(prompt(5 + 9 * number, number), 10)
        handle = bench.submit(prompt(21), 20)
        bench.run()
        assert bench.ids(handle) == expected


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65])
def test_chunks_change_nothing_and_use_the_pages_they_should(runner: TorchRunner, length: int) -> None:
    """B100: pages of 16, chunks of 32."""
    bench = EngineBench(runner, max_chunk_tokens=32)
    handle = bench.submit(prompt(length), 20)
    bench.run()
    assert bench.ids(handle) == alone(runner, prompt(length), 20)
    finished = bench.finished(handle)
    assert finished.promised_pages == -(-(length + 20) // 16)
    assert finished.used_pages == -(-(length + 19) // 16)


@pytest.mark.parametrize(("length", "cached"), [(48, 47), (49, 48), (16, 15), (17, 16), (15, 0)])
def test_a_prefix_hit_changes_nothing(runner: TorchRunner, length: int, cached: int) -> None:
    """B99: at least the last token is computed; output and top-5 logprobs equal the first run's."""
    bench = EngineBench(runner)
    first = bench.submit(prompt(length), 12, logprobs=True, num_logprobs=5)
    bench.run()
    second = bench.submit(prompt(length), 12, logprobs=True, num_logprobs=5)
    bench.run()
    assert (bench.accepted(first).cached_tokens, bench.accepted(second).cached_tokens) == (0, cached)
    assert bench.ids(second) == bench.ids(first)
    assert bench.logprobs(second) == bench.logprobs(first)


def test_choices_share_their_prompt_and_copy_on_write(runner: TorchRunner) -> None:
    greedy = alone(runner, prompt(21), 20)
    bench = EngineBench(runner)
    handle = bench.submit(prompt(21), 20, n=4)
    bench.run()
    assert [bench.ids(handle + choice) for choice in range(4)] == [greedy] * 4
    sampled = []
    for _ in range(2):
        bench = EngineBench(runner)
        handle = bench.submit(prompt(21), 20, n=3, temperature=1.5, seed=5)
        bench.run()
        sampled.append([tuple(bench.ids(handle + choice)) for choice in range(3)])
    assert sampled[0] == sampled[1]
    assert len(set(sampled[0])) == 3


def test_a_seed_repeats_in_any_batch(runner: TorchRunner) -> None:
    expected = alone(runner, prompt(9), 16, temperature=0.8, seed=42)
    bench = EngineBench(runner)
    for number in range(4):
        bench.submit(prompt(20, number), 16, temperature=1.0)
    handle = bench.submit(prompt(9), 16, temperature=0.8, seed=42)
    bench.run()
    assert bench.ids(handle) == expected
    assert expected != alone(runner, prompt(9), 16, temperature=0.8, seed=43)


def test_a_cancelled_neighbours_pages_are_reused_without_harm(runner: TorchRunner) -> None:
    expected = alone(runner, prompt(40, 3), 20)
    bench = EngineBench(runner, num_pages=256)
    victim = bench.submit(prompt(60), 100)
    for _ in range(7):
        bench.step()
    bench.engine.cancel(Cancel(f"r{victim}"))
    handle = bench.submit(prompt(40, 3), 20)
    bench.run()
    assert bench.ids(handle) == expected


def test_a_poisoned_sequence_fails_alone(tmp_path: Path) -> None:
    runner = load(write_tiny(tmp_path / "llama", "llama"), tmp_path, deterministic=True)
    healthy = [token_id if token_id != 63 else 1 for token_id in prompt(30)]
    expected = alone(runner, healthy, 8, banned_ids=frozenset({63}))
    poison(runner, 63)
    bench = EngineBench(runner)
    good = bench.submit(healthy, 8, banned_ids=frozenset({63}))
    bad = bench.submit([5, 63, 9], 8)
    empty = bench.submit(healthy, 8, allowed_ids=frozenset({7}), banned_ids=frozenset({7}))
    bench.run()
    assert bench.finished(bad).reason == "engine_error"
    assert bench.finished(empty).reason == "no_valid_token"
    assert bench.ids(good) == expected
    again = bench.submit(healthy, 8, banned_ids=frozenset({63}))
    bench.run()
    assert bench.ids(again) == expected


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3"])
def test_every_family_warms_up_and_runs(tmp_path: Path, family: str) -> None:
    runner = load(write_tiny(tmp_path / family, family), tmp_path)
    assert len(alone(runner, prompt(20), 5)) == 5
    described = runner.describe()
    assert (described.max_context, described.vocab_size, described.num_pages) == (256, VOCAB_SIZE, 256)
    assert described.weight_bytes > 0 and described.workspace_bytes >= 0


def test_a_missing_model_and_a_context_beyond_the_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="nowhere"):
        load(tmp_path / "nowhere", tmp_path)
    with pytest.raises(ConfigError, match="max_context"):
        load(write_tiny(tmp_path / "llama", "llama"), tmp_path, max_context=257)


def test_a_budget_below_one_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="kv_bytes"):
        load(write_tiny(tmp_path / "llama", "llama"), tmp_path, num_pages=None, kv_bytes=100)


def test_weights_that_cannot_be_right_never_become_ready(tmp_path: Path) -> None:
    runner = load(write_tiny(tmp_path / "llama", "llama"), tmp_path)
    runner._loaded.model.model.embed_tokens.weight.fill_(float("nan"))
    with pytest.raises(RunnerError, match="known answer"):
        runner.warm_up(lambda text, share: None)
