"""Groups of real processes give what one rank gives, in every layout."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.loading import load_torch_runner
from headrace_worker.execution.runner import GroupTimes
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.cancel import Cancel
from tests.unit.worker.execution.engine_bench import EngineBench
from tests.unit.worker.execution.grammar_bench import GrammarBench, make_grammars
from tests.unit.worker.parallel.group_model import answers, group, prompt, rank_pids, write_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("group") / "eight")


@pytest.fixture(scope="module")
def expected(source: Path) -> list[Any]:
    with group(source, 1) as runner:
        return answers(runner)


@pytest.mark.parametrize(
    ("tp", "pp"),
    [(2, 1), (1, 2), (2, 2), pytest.param(4, 1, marks=pytest.mark.slow), pytest.param(1, 4, marks=pytest.mark.slow)],
)
def test_a_layout_gives_the_tokens_of_one_rank(source: Path, expected: list[Any], tp: int, pp: int) -> None:
    with group(source, tp, pp) as runner:
        assert answers(runner) == expected
        described = runner.describe()
        assert (described.tp, described.pp, described.depth) == (tp, pp, pp)
        assert [size for size, _ in described.all_reduce] == ([1 << 12, 1 << 15, 1 << 18, 1 << 20] if tp > 1 else [])
        assert all(seconds > 0 for _, seconds in described.all_reduce)
        # 4 layers of 4 KV heads of 8 numbers, keys and values, in float32; over all ranks.
        assert described.kv_bytes_per_token == 2 * 4 * 4 * 8 * 4


def test_overlapped_ranks_give_the_tokens_of_the_plain_loop(source: Path, expected: list[Any]) -> None:
    """The first rank draws; all of them embed what it drew before the leader's host has seen it."""
    with group(source, 2, overlap="on") as runner:
        assert answers(runner) == expected
        bench = EngineBench(runner)
        for salt in range(3):
            bench.submit(prompt(9, salt), 12)
        most = 0
        while bench.engine.has_work:
            bench.step()
            most = max(most, len(bench.engine._in_flight))
        assert most == 1, "a step was in flight while the one before it was settled"
        assert_grammars_are_kept(runner)


def test_ranks_beyond_the_kv_heads_hold_copies_and_stay_deterministic(tmp_path: Path) -> None:
    """Two KV heads on four ranks, a tied head, a vocabulary of 63 on 4 x 16 rows."""
    source = write_model(tmp_path / "two", num_key_value_heads=2, tie_word_embeddings=True, vocab_size=63)
    with group(source, 1) as runner:
        expected = answers(runner)
    with group(source, 4, deterministic=True) as runner:
        assert answers(runner) == expected
        assert runner.describe().kv_bytes_per_token == 2 * 4 * (4 * 1) * 8 * 4
        assert_same_bits_alone_and_in_a_batch(runner)


def assert_same_bits_alone_and_in_a_batch(runner: TorchRunner) -> None:
    """Four numbers add up to the same bits only in the same order."""
    first, bench = EngineBench(runner), EngineBench(runner)
    alone = first.submit(prompt(21), 12, logprobs=True, num_logprobs=3)
    first.run()
    for salt in range(4):
        bench.submit(prompt(5 + 9 * salt, salt), 12)
    beside = bench.submit(prompt(21), 12, logprobs=True, num_logprobs=3)
    bench.run()
    hit = bench.submit(prompt(21), 12, logprobs=True, num_logprobs=3)
    bench.run()
    assert bench.accepted(hit).cached_tokens == 16
    ids, chances = bench.ids(beside), bench.logprobs(beside)
    assert (bench.ids(hit), bench.logprobs(hit)) == (ids, chances)
    assert (first.ids(alone), first.logprobs(alone)) == (ids, chances)


def test_a_tied_head_on_another_stage_loads_the_embedding(tmp_path: Path) -> None:
    source = write_model(tmp_path / "tied", "qwen3", tie_word_embeddings=True, num_hidden_layers=3)
    with group(source, 1) as runner:
        expected = answers(runner)
    with group(source, 1, 2) as runner:
        assert answers(runner) == expected


def test_a_pipeline_is_filled_cancelled_and_left(source: Path) -> None:
    with group(source, 1, 2) as runner:
        pids = rank_pids(runner)
        assert stays_full(runner)
        assert_a_prompts_chunks_follow_each_other(runner)
        bench = EngineBench(runner)
        victim, other = bench.submit(prompt(30), 200), bench.submit(prompt(12, 2), 15)
        for _ in range(6):
            bench.step()
        bench.engine.cancel(Cancel(f"r{victim}"))
        bench.run()
        assert bench.finished(victim).reason == "client" and len(bench.ids(victim)) < 20
        assert len(bench.ids(other)) == 15
        assert_grammars_are_kept(runner)
        assert all(map(psutil.pid_exists, pids))
    assert not any(map(psutil.pid_exists, pids))


def assert_grammars_are_kept(runner: TorchRunner) -> None:
    """The leader follows the texts, and the last stage draws with its masks."""
    runner._grammars = grammars = make_grammars()
    try:
        bench = GrammarBench(runner)
        handles = [bench.constrain("regex", "[0-9]{3}-[a-f]{2}", n=2, temperature=1.0, seed=seed) for seed in range(3)]
        free = bench.submit(prompt(12), 10)
        bench.run()
        texts = [bench.text(handle + choice) for handle in handles for choice in range(2)]
        assert all(re.fullmatch("[0-9]{3}-[a-f]{2}", text) for text in texts), texts
        assert len(set(texts)) > 1 and len(bench.ids(free)) == 10
    finally:
        grammars.shut()


def assert_a_prompts_chunks_follow_each_other(runner: TorchRunner) -> None:
    """A chunk is with the first stage while the one before it is with the second; the tokens are those of one chunk."""
    whole, chunked = EngineBench(runner), EngineBench(runner, max_chunk_tokens=16)
    wanted, handle = whole.submit(prompt(64, 5), 8), chunked.submit(prompt(64, 5), 8)
    whole.run()
    chunked.step()  # two chunks are launched, and the first one is settled
    (launched,) = chunked.engine._in_flight
    assert [(row.start, len(row.token_ids)) for row in launched.plan.rows] == [(16, 16)]
    chunked.run()
    assert chunked.ids(handle) == whole.ids(wanted)


def stays_full(runner: TorchRunner) -> bool:
    """While one step is waited for, the next one is computed; the bubble is told, and so are the collectives."""
    bench = EngineBench(runner)
    for salt in range(4):
        bench.submit(prompt(9, salt), 24)
    left, told, started_s = [], GroupTimes(), time.monotonic()
    while bench.engine.has_work:
        output = bench.engine.step()
        left.append(len(bench.engine._in_flight))
        told += output.times if output is not None else GroupTimes()
    took_s = time.monotonic() - started_s
    assert told.busy_s > 0 and told.idle_s > 0 and 0 < told.collective_s < took_s
    assert told.busy_s + told.idle_s < 2 * took_s + 0.01
    return max(left) == 1 and sum(left) > 20


@pytest.mark.parametrize(
    ("degrees", "sentence"),
    [
        ({"tp": 3}, "tp: 3 does not divide 8 query heads of eight"),
        ({"tp": 16}, "tp: 16 does not divide 8 query heads of eight"),
        ({"pp": 5}, "pp: 5 stages need more than the 4 layers of eight"),
    ],
)
def test_degrees_that_do_not_divide_are_refused_with_numbers(
    source: Path, degrees: dict[str, int], sentence: str
) -> None:
    config = WorkerConfig(service_token_file=Path("t"), state_dir=source.parent, source=str(source), **degrees)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as refused:
        load_torch_runner(config, lambda text, share: None)
    assert str(refused.value) == sentence


def test_a_group_needs_weights() -> None:
    with pytest.raises(ConfigError, match="tp: the scripted engine is one process"):
        WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted", tp=2)
