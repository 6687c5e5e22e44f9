"""What makes `headrace up` give up: deaths in a row, no place for a while, crashes; and what does not."""

import json
from pathlib import Path

import pytest

from headrace.v1 import fleet_pb2 as fleet
from headrace.v1 import response_pb2
from headrace.v1 import worker_pb2 as worker
from headrace_cli.platform.hopeless import MOST_DEATHS, NO_PLACE_S, Hopeless, crashes
from headrace_cli.platform.state_dir import StateDir

LOADING, READY, GONE = (getattr(worker, f"REPLICA_STATE_{name}") for name in ("LOADING", "READY", "GONE"))


def replica(state: "worker.ReplicaState", pid: int = 0, progress: str = "") -> list[fleet.Replica]:
    ref = response_pb2.ReplicaRef(id="a-0")
    return [fleet.Replica(ref=ref, pool="a", state=state, pid=pid, progress=progress)]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    made = StateDir(tmp_path)
    made.prepare()
    return made


def test_a_replica_that_is_started_again_and_again_is_named_with_its_last_words_and_log(state: StateDir) -> None:
    log = state.of("controlplane") / "workers/a-0.log"
    log.parent.mkdir(parents=True)
    log.touch()
    hopeless = Hopeless(state)
    for pid in range(1, MOST_DEATHS + 1):
        assert hopeless.look(replica(LOADING, pid)) is None
        assert hopeless.look(replica(GONE, pid, "no such file")) is None
    reason = hopeless.look(replica(GONE, MOST_DEATHS + 1, "no such file"))
    assert reason == f"replica a-0 of pool a has died 5 times before it was ready: no such file (log: {log})"


def test_one_that_was_ready_in_between_has_hope(state: StateDir) -> None:
    hopeless = Hopeless(state)
    for pid in range(1, 4 * MOST_DEATHS):
        assert hopeless.look(replica(READY if pid % 4 == 0 else LOADING, pid)) is None


def test_a_replica_without_a_place_is_waited_for_a_while(state: StateDir) -> None:
    now = [0.0]
    hopeless = Hopeless(state, lambda: now[0])
    assert hopeless.look(replica(GONE, 0, "needs 2 devices")) is None
    now[0] = NO_PLACE_S
    assert hopeless.look(replica(LOADING, 7)) is None
    assert hopeless.look(replica(GONE, 0, "needs 2 devices")) is None
    now[0] = 2 * NO_PLACE_S + 1
    assert hopeless.look(replica(GONE, 0, "needs 2 devices")) == "replica a-0 of pool a has no place: needs 2 devices"


def test_a_service_that_ends_in_a_row_is_named_and_old_deaths_are_not(state: StateDir) -> None:
    state.deaths.write_text(json.dumps({"redis": 9}))
    hopeless = Hopeless(state)
    assert hopeless.look([]) is None, "that was before"
    state.deaths.write_text(json.dumps({"redis": 0, "policy": MOST_DEATHS}))
    assert hopeless.look([]) == f"policy has ended 5 times in a row (log: {state.log('policy')})"


def test_crashes_are_read_by_task() -> None:
    text = '# TYPE task_crashes_total counter\ntask_crashes_total{task="foreman"} 7.0\nother_total{task="x"} 9.0\n'
    assert crashes(text) == {"foreman": 7}
