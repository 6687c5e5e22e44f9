"""`headrace up` on a platform that cannot come up: it ends soon, says what ends again and again, and where to read."""

import time
from pathlib import Path

import pytest
import yaml

from tests.integration.platform.running_platform import SCRIPTED, run_headrace


@pytest.mark.slow
def test_a_replica_that_dies_at_each_start_is_named_with_its_log(tmp_path: Path) -> None:
    fleet = yaml.safe_load(SCRIPTED.read_text())
    fleet["models"]["scripted"]["source"] = f"dir:{tmp_path}/nothing"
    fleet["pools"]["scripted"]["engine"] = "torch"
    file, state = tmp_path / "fleet.yaml", tmp_path / "p"
    file.write_text(yaml.safe_dump(fleet))
    started = time.monotonic()
    result = run_headrace(state, "up", "--detach", "--fleet", str(file), timeout_s=300.0)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    log = state / "services/controlplane/workers/scripted-0.log"
    assert "replica scripted-0 of pool scripted has died 5 times" in last and str(log) in last
    assert time.monotonic() - started < 200, "it waited for its timeout"
    assert run_headrace(state, "status").returncode == 1, "nothing of it is left running"


def test_a_task_that_crashes_again_and_again_is_named_with_its_log(tmp_path: Path) -> None:
    """The foreman cannot open the log of the replica that it has to start."""
    state = tmp_path / "p"
    (state / "services/controlplane/workers/scripted-0.log").mkdir(parents=True)
    result = run_headrace(state, "up", "--detach", "--fleet", str(SCRIPTED), timeout_s=300.0)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert "background task foreman of controlplane has crashed" in last
    assert str(state / "logs/controlplane.log") in last
