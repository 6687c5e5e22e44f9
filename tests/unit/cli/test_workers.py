"""Workers that end by themselves while the platform stops keep nobody from stopping the others."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace_cli.platform import workers
from headrace_cli.platform.state_dir import StateDir


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def record(state: StateDir, slot: str, process: subprocess.Popen[bytes]) -> None:
    path = state.of("controlplane") / "workers" / f"{slot}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": process.pid, "started_at": psutil.Process(process.pid).create_time()}), "utf-8")


async def test_one_that_just_ended_keeps_nobody_from_stopping_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDir(tmp_path)
    first, second = sleeper(), sleeper()
    record(state, "0", first)
    record(state, "1", second)
    seen = workers.live_processes(state)
    first.kill()
    first.wait()
    monkeypatch.setattr(workers, "live_processes", lambda _: seen)
    await workers.stop_all(state, grace_s=10.0)
    assert not psutil.pid_exists(second.pid)
    second.wait()


def test_a_record_of_an_ended_worker_names_no_process(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    process = sleeper()
    record(state, "0", process)
    assert [each.pid for each in workers.live_processes(state)] == [process.pid]
    process.kill()
    process.wait()
    assert workers.live_processes(state) == []
