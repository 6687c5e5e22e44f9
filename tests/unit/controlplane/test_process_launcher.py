"""Real processes: they outlive the launcher, are adopted, and no replica ever has two of them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace_controlplane.launcher.base import Launched, LaunchSpec
from headrace_controlplane.launcher.process import ProcessLauncher

Launch = Callable[..., ProcessLauncher]
SLEEPER = "import time; print('awake', flush=True); time.sleep(600)"


def spec(code: str = SLEEPER, replica_id: str = "cpu-0", drain_s: float = 0.0) -> LaunchSpec:
    return LaunchSpec(replica_id, "cpu", "m", "digest", (sys.executable, "-c", code), drain_s)


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.01)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def launch(root: Path) -> Iterator[Launch]:
    """Makes launchers over one directory, as control planes come and go; what still runs at the end is killed."""
    made: list[ProcessLauncher] = []

    def make(wall: Callable[[], float] = time.time) -> ProcessLauncher:
        made.append(ProcessLauncher(root, wall=wall))
        return made[-1]

    yield make
    for child in [child for launcher in made for child in launcher._children.values()]:
        if child.poll() is None:
            child.kill()
        child.wait()


def only(launcher: ProcessLauncher) -> Launched:
    (seen,) = launcher.observe()
    return seen


def awake(root: Path) -> bool:
    log = root / "cpu-0.log"
    return log.exists() and "awake" in log.read_text()


def test_a_started_replica_is_seen_with_its_pid_and_its_own_session(root: Path, launch: Launch) -> None:
    launcher = launch()
    launcher.start(spec())
    seen = only(launcher)
    assert seen.alive
    until(lambda: awake(root))
    assert os.getsid(only(launcher).pid) == only(launcher).pid
    assert json.loads((root / "cpu-0.json").read_text())["pid"] == seen.pid


def test_a_second_process_of_one_replica_gives_way(root: Path, launch: Launch) -> None:
    """Also when the second launcher does not know that the first one has started it."""
    first, second = launch(), launch()
    first.start(spec())
    until(lambda: awake(root))
    pid = only(first).pid
    second.start(spec())
    until(lambda: "another process holds" in (root / "cpu-0.log").read_text())
    until(lambda: only(second).pid == pid)
    assert only(first).pid == pid


@pytest.mark.parametrize("num_launchers", [2, 5])
def test_launchers_that_start_at_once_make_one_process(root: Path, launch: Launch, num_launchers: int) -> None:
    """As when a control plane is killed between starting a replica and learning its pid, and comes back at once."""
    launchers = [launch() for _ in range(num_launchers)]
    for launcher in launchers:
        launcher.start(spec())
    log = root / "cpu-0.log"
    until(lambda: log.exists() and log.read_text().count("another process holds") == num_launchers - 1)
    until(lambda: awake(root))
    until(lambda: len({only(launcher).pid for launcher in launchers}) == 1)
    assert log.read_text().count("awake") == 1


def test_a_pid_that_went_to_another_process_is_not_ours(root: Path, launch: Launch) -> None:
    first = launch()
    first.start(spec())
    until(lambda: awake(root))
    record = root / "cpu-0.json"
    pid = json.loads(record.read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not only(first).alive)
    record.write_text(json.dumps({"pid": os.getpid(), "started_at": 1.0}))
    assert not only(launch()).alive


def test_stop_is_remembered_and_forget_leaves_only_the_log(root: Path, launch: Launch) -> None:
    launcher = launch()
    launcher.start(spec())
    until(lambda: awake(root))
    launcher.stop("cpu-0")
    until(lambda: not only(launcher).alive)
    assert only(launch()).stopping
    launcher.forget("cpu-0")
    assert [path.name for path in root.iterdir()] == ["cpu-0.log"]
    assert launcher.observe() == []


def test_a_long_log_moves_aside(root: Path, launch: Launch) -> None:
    with (root / "cpu-0.log").open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    launcher = launch()
    launcher.start(spec())
    assert (root / "cpu-0.log.1").stat().st_size == 17 * 1024 * 1024
    until(lambda: awake(root))


def test_devices_are_seen_by_the_process_and_known_to_the_next_launcher(launch: Launch, root: Path) -> None:
    tell = "import os, time; print('awake', os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
    launch().start(replace(spec(tell), devices=(3, 2)))
    until(lambda: awake(root))
    assert "awake 3,2" in (root / "cpu-0.log").read_text()
    assert only(launch()).spec.devices == (3, 2)
