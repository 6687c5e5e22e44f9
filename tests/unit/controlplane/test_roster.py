"""What a control plane that starts again says of the replicas that an earlier one knew."""

from pathlib import Path

from headrace_controlplane.registry import Record
from headrace_controlplane.replica_messages import to_set
from headrace_controlplane.roster import Roster
from tests.meters import reading


def test_replicas_that_were_restored_are_counted_before_anything_changes(tmp_path: Path) -> None:
    path = tmp_path / "replicas.pb"
    first = Roster(path, lease_s=10.0)
    first.heartbeat(Record(id="a", epoch="e", endpoint="127.0.0.1:1", state="ready"))
    path.write_bytes(to_set(first.registry.view(0.0), "x").SerializeToString())
    first.remove("a")
    assert reading("replicas", state="ready") == 0
    Roster(path, lease_s=10.0)
    assert reading("replicas", state="ready") == 1
