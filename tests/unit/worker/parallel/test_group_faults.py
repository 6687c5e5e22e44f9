"""A lost rank ends its group at once and with a reason; nothing hangs, and no rank is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace_worker.config import WorkerConfig
from headrace_worker.execution import ranks
from headrace_worker.execution.loading import load_torch_runner
from headrace_worker.execution.runner import RunnerError
from tests.unit.worker.execution.engine_bench import EngineBench
from tests.unit.worker.parallel.group_model import group, prompt, rank_pids, write_model

FAULTY = Path(__file__).with_name("faulty_rank.py")
# Two seconds are promised. A busy host may take longer to run us; a collective's own timeout is far above.
AT_ONCE_S = 10.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("faults") / "eight")


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """When this file exists, ranks misbehave as the parameter says."""
    path = tmp_path / "now"
    monkeypatch.setattr(ranks, "PROGRAM", (sys.executable, str(FAULTY), str(path), request.param))
    yield path


def end_of(bench: EngineBench) -> tuple[str, float]:
    """What the engine says when it steps on, and how many seconds it took to say so."""
    bench.submit(prompt(20), 120)
    started_s = time.monotonic()
    with pytest.raises(RunnerError) as failed:
        bench.run()
    return str(failed.value), time.monotonic() - started_s


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("tp", "pp"), [pytest.param(2, 1, marks=pytest.mark.slow), (1, 2)])
def test_a_killed_rank_is_noticed_at_once(source: Path, tp: int, pp: int) -> None:
    with group(source, tp, pp) as runner:
        bench, (pid,) = EngineBench(runner), rank_pids(runner)
        os.kill(pid, signal.SIGKILL)
        said, took_s = end_of(bench)
        assert said == f"rank 1 of 2 (pid {pid}) has ended: killed by signal 9"
        assert took_s < AT_ONCE_S


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.slow)])
def test_a_stopped_rank_is_noticed_by_its_heart(source: Path, tp: int, pp: int) -> None:
    with group(source, tp, pp) as runner:
        bench, (pid,) = EngineBench(runner), rank_pids(runner)
        os.kill(pid, signal.SIGSTOP)
        said, took_s = end_of(bench)
        assert said.startswith(f"rank 1 of 2 (pid {pid}) gives no sign of life")
        assert took_s < AT_ONCE_S
    assert is_gone(pid)


@pytest.mark.parametrize("flag", ["shape"], indirect=True)
def test_ranks_of_other_shapes_are_noticed_at_once(source: Path, flag: Path) -> None:
    with group(source, 2) as runner:
        bench = EngineBench(runner)
        flag.touch()
        said, took_s = end_of(bench)
        # Whoever gets more bytes than it asked for aborts, unless the log is looked at before.
        assert "disagree" in said or "killed by signal 6" in said
        assert took_s < AT_ONCE_S


@pytest.mark.parametrize("flag", ["stuck"], indirect=True)
def test_a_stuck_collective_ends_at_its_timeout(source: Path, flag: Path) -> None:
    with group(source, 2, collective_timeout_s=1.5) as runner:
        bench = EngineBench(runner)
        flag.touch()
        said, took_s = end_of(bench)
        assert said.startswith("a collective takes over 1.5 s: rank 0 in all_reduce number ")
        assert 1.5 <= took_s < 1.5 + AT_ONCE_S


@pytest.mark.parametrize("flag", ["raise"], indirect=True)
def test_a_rank_says_why_it_broke_and_the_listener_hears_it_too(source: Path, flag: Path) -> None:
    heard: list[str] = []
    config = WorkerConfig(
        service_token_file=Path("t"),
        state_dir=source.parent,
        source=str(source),
        tp=2,
        threads=1,
        max_running=4,
        max_batch_tokens=64,
        num_pages=64,
    )
    runner = load_torch_runner(config, lambda text, share: None, heard.append)
    try:
        runner.warm_up(lambda text, share: None)
        bench = EngineBench(runner)
        flag.touch()
        said, took_s = end_of(bench)
        assert said.endswith("broke: ValueError: the rank has had enough")
        assert took_s < AT_ONCE_S and heard == [said]
    finally:
        runner.shut()


def test_a_rank_that_cannot_start_is_a_sentence(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ranks, "PROGRAM", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(RunnerError, match=r"rank 1 of 2 \(pid \d+\) has ended: exit status 3"), group(source, 2):
        pass
