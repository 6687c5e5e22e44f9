"""The overlapped loop beside the plain one: the same tokens, the same endings, nothing that a late step drew."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.runner import Ran
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Tokens
from headrace_worker.scheduling.plan import Plan
from headrace_worker.scheduling.request import Request, SamplingParams
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.models.tiny import VOCAB_SIZE, write_tiny


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TorchRunner, TorchRunner]]:
    """(plain, overlapped), bit for bit the same model."""
    folder = tmp_path_factory.mktemp("tiny")
    before = torch.get_num_threads()
    source = write_tiny(folder / "llama", "llama")
    settings = {"deterministic": True, "num_pages": 20}
    yield load(source, folder, overlap="off", **settings), load(source, folder, overlap="on", **settings)
    torch.set_num_threads(before)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * index + 3 + salt * 11) % VOCAB_SIZE for index in range(length)]


def submit_all(bench: EngineBench) -> list[int]:
    """Of every kind; handles of all choices."""
    first = [
        bench.submit(prompt(21), 20),
        bench.submit(prompt(40, 1), 1),
        bench.submit(prompt(16, 2), 24, temperature=0.9, seed=5),
        bench.submit(prompt(9, 3), 12, n=3, temperature=1.0, seed=6, top_p=0.9),
        bench.submit(prompt(50, 4), 16, repetition_penalty=1.3, frequency_penalty=0.5),
        bench.submit(prompt(5, 5), 16, logprobs=True, num_logprobs=2),
        bench.submit(prompt(18, 6), 24, temperature=1.2, seed=8, stop_token_ids=frozenset(range(0, VOCAB_SIZE, 9))),
        # Everything ends it, and nothing may end it yet: it fails, and a late step of it is in flight.
        bench.submit(prompt(33, 7), 10, min_tokens=4, stop_token_ids=frozenset(range(VOCAB_SIZE))),
    ]
    return [*first, first[3] + 1, first[3] + 2]


def test_both_loops_draw_the_same(runners: tuple[TorchRunner, TorchRunner]) -> None:
    plain, overlapped = (EngineBench(runner, max_chunk_tokens=32) for runner in runners)
    handles = submit_all(plain)
    assert submit_all(overlapped) == handles
    for bench in (plain, overlapped):
        bench.run()
    assert overlapped.engine.scheduler.limits.max_in_flight == 2
    for handle in handles:
        assert overlapped.ids(handle) == plain.ids(handle), f"handle {handle}"
        assert overlapped.logprobs(handle) == plain.logprobs(handle)
        assert overlapped.finished(handle).reason == plain.finished(handle).reason
        assert overlapped.finished(handle).num_generated == len(overlapped.ids(handle))
    reasons = {overlapped.finished(handle).reason for handle in handles}
    assert reasons == {"stop", "length", "no_valid_token"}


def test_a_stop_seen_one_step_late_emits_nothing_more(runners: tuple[TorchRunner, TorchRunner]) -> None:
    plain, overlapped = (EngineBench(runner) for runner in runners)
    handle = plain.submit(prompt(12), 10)
    plain.run()
    stop = plain.ids(handle)[4]
    first = plain.ids(handle).index(stop)
    handle = overlapped.submit(prompt(12), 10, stop_token_ids=frozenset({stop}))
    overlapped.run()
    assert overlapped.ids(handle) == plain.ids(handle)[: first + 1]
    assert overlapped.finished(handle).reason == "stop"
    assert overlapped.finished(handle).num_late_steps == 1


def test_the_next_step_is_launched_before_the_one_before_is_collected(
    runners: tuple[TorchRunner, TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[str] = []
    runner = runners[1]
    launch, collect = runner.launch, runner.collect

    def noted_launch(plan: Plan) -> None:
        moves.append(f"launch {plan.step}")
        launch(plan)

    def noted_collect() -> Ran:
        moves.append("collect")
        return collect()

    monkeypatch.setattr(runner, "launch", noted_launch)
    monkeypatch.setattr(runner, "collect", noted_collect)
    bench = EngineBench(runner)
    bench.submit(prompt(12), 4)
    bench.run()
    assert moves == ["launch 0", "launch 1", "collect", "launch 2", "collect", "launch 3", "collect", "collect"]


def test_the_length_is_known_beforehand_and_costs_no_late_step(runners: tuple[TorchRunner, TorchRunner]) -> None:
    bench = EngineBench(runners[1])
    handle = bench.submit(prompt(12), 7)
    bench.run()
    assert bench.finished(handle).num_late_steps == 0


def test_a_cancel_takes_effect_by_the_second_step(runners: tuple[TorchRunner, TorchRunner]) -> None:
    bench = EngineBench(runners[1])
    handle = bench.submit(prompt(12), 40)
    for _ in range(6):
        bench.step()
    bench.engine.cancel(Cancel(f"r{handle}"))
    num_steps = 0
    while not any(getattr(event, "reason", None) == "client" for event in bench.events):
        bench.step()
        num_steps += 1
    assert num_steps <= 2
    tokens = [event for event in bench.events if isinstance(event, Tokens)]
    bench.run()
    assert [event for event in bench.events if isinstance(event, Tokens)] == tokens


@pytest.mark.parametrize("which", [0, 1], ids=["plain", "overlapped"])
def test_preempted_requests_continue_where_they_were(runners: tuple[TorchRunner, TorchRunner], which: int) -> None:
    """The statistical class on a real model: prompt and output are computed again, and nothing is drawn twice."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.9, "seed": 4, "frequency_penalty": 0.8, "repetition_penalty": 1.2},
    )
    expected = []
    for salt, kind in enumerate(kinds):
        bench = EngineBench(runners[0])
        handle = bench.submit(prompt(30, salt), 90, **kind)
        bench.run()
        expected.append(bench.ids(handle))
    bench = EngineBench(runners[which], statistical_overrun=0.5)
    for _ in range(100):
        bench.engine.scheduler._statistical.lengths.observe(8)
    handles = []
    for salt, kind in enumerate(kinds):
        handle = 100 + salt
        sampling = SamplingParams(ignore_eos=True, **kind)
        ids = array("I", prompt(30, salt))
        bench.engine.submit(Request(handle, f"r{handle}", 1, ids, 90, sampling=sampling, statistical=True))
        handles.append(handle)
    bench.run()
    assert bench.engine.scheduler.running.num_preempted > 0
    assert [bench.ids(handle) for handle in handles] == expected


def test_overlap_is_refused_where_there_is_no_device_of_its_own() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted", overlap="on")
    with pytest.raises(ConfigError, match=r"overlap: is not there for a pipeline \(pp is 2\)"):
        WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), source="x", tp=2, pp=2, overlap="on")


def test_overlap_is_on_for_one_gpu_and_off_elsewhere_unless_asked_for() -> None:
    def overlaps(**settings: object) -> bool:
        config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), source="x", **settings)  # type: ignore[arg-type]
        return config.overlaps

    assert not overlaps()
    assert overlaps(overlap="on")
    assert overlaps(device="cuda")
    assert not overlaps(device="cuda", tp=2) and overlaps(device="cuda", tp=2, overlap="on")
    assert not overlaps(device="cuda", overlap="off")
