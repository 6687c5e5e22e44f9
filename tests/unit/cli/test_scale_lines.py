"""How scaled pools are shown: what is unknown is said to be, and an alarm is seen."""

from headrace.v1 import fleet_pb2 as pb
from headrace_cli.scale_lines import decision_row, measured_line, scale_line


def test_a_decision_is_told_with_its_reason() -> None:
    now = pb.ScaleDecision(num_desired=3, why="load", detail="load 250 needs 3")
    scale = pb.PoolScale(pool="p", num_desired=3, num_kept=3, num_ready=2, num_starting=1, num_reserve_left=-1, now=now)
    assert scale_line(scale) == (
        "# scale p: 3 wanted (2 ready, 1 starting, 0 draining; reserve left -1): load: load 250 needs 3"
    )


def test_a_dry_run_and_an_alarm_are_seen() -> None:
    now = pb.ScaleDecision(why="missing", detail="no router reports", alarm=True)
    line = scale_line(pb.PoolScale(pool="p", num_desired=5, num_kept=2, dry_run=True, now=now))
    assert "dry run: 2 are kept" in line
    assert "ALARM, missing: no router reports" in line


def test_what_is_not_known_is_said() -> None:
    assert measured_line(pb.PoolScale(pool="p", start_up_s=30)) == (
        "p: load not known, capacity of a replica not measured yet, forecast none, start-up 30 s"
    )
    known = pb.PoolScale(pool="p", load=0, capacity=256.4, forecast=300, start_up_s=2)
    assert measured_line(known) == (
        "p: load 0 tokens/s, capacity of a replica 256.4 tokens/s, forecast 300 tokens/s, start-up 2 s"
    )


def test_history_has_the_time_in_utc() -> None:
    row = decision_row("p", pb.ScaleDecision(at_ms=1_000, num_desired=2, why="lower", detail="d"))
    assert row == ("p", "1970-01-01 00:00:01", "2", "lower", "d")
