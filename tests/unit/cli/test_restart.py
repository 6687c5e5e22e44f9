"""Restarts of workers exclude one another: a second signal would end a worker that drains."""

from pathlib import Path

import pytest

from headrace_cli.platform.state_dir import CommandError, StateDir
from headrace_cli.verbs.restart import alone


def test_one_restart_of_workers_at_a_time(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    with alone(state), pytest.raises(CommandError, match="another restart"), alone(state):
        pass
    with alone(state):
        pass
