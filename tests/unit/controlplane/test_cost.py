"""Where device time went: parts add up to the bill, to the microsecond, whatever was done when."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import fleet_pb2, policy_pb2
from headrace_controlplane.cost import Account, Segment, Work, account, bill, clip
from headrace_controlplane.settled_work import works

HOUR_MS = 3_600_000
SEGMENT = Segment("w0", "e1", "gpu", "m", 2, 3.0, 0, HOUR_MS)
WORK = Work("w0", "e1", 1000, "m", "acme", "standard", "useful", 600_000_000, 1000)


def test_an_hour_of_two_devices_is_split() -> None:
    lines = account([SEGMENT], [WORK, replace(WORK, part="failed", busy_us=60_000_000, num_tokens=7)])
    assert bill([SEGMENT]).cost == pytest.approx(6.0)
    useful, failed = (lines[Account("gpu", "m", "acme", "standard", part)] for part in ("useful", "failed"))
    assert (useful.device_us, useful.num_tokens) == (1_200_000_000, 1000)
    assert useful.cost == pytest.approx(1.0)
    assert (failed.device_us, failed.num_tokens) == (120_000_000, 7)
    assert lines[Account("gpu", "m", "", "", "idle")].device_us == 7_200_000_000 - 1_320_000_000


def test_a_new_price_holds_from_its_own_segment_on() -> None:
    later = replace(SEGMENT, price_per_gpu_hour=30.0, from_ms=HOUR_MS, to_ms=2 * HOUR_MS)
    dear = replace(WORK, settled_at_ms=HOUR_MS + 5)
    cheap = account([later, SEGMENT], [WORK])[Account("gpu", "m", "acme", "standard", "useful")]
    assert account([later, SEGMENT], [dear])[Account("gpu", "m", "acme", "standard", "useful")].cost == pytest.approx(
        10 * cheap.cost
    )


def test_a_range_that_cuts_through_work_still_sums() -> None:
    short = clip([SEGMENT], HOUR_MS - 1, HOUR_MS)
    lines = account(short, [WORK, replace(WORK, tenant="b", busy_us=300_000_000)])
    assert [amount.device_us for amount in lines.values()] == [1333, 667, 0]


def test_work_of_an_unknown_process_is_shown_and_costs_nothing() -> None:
    lines = account([], [WORK])
    amount = lines[Account("", "m", "acme", "standard", "useful")]
    assert (amount.device_us, amount.cost) == (600_000_000, 0.0)


_segments = st.lists(
    st.builds(
        lambda name, epoch, devices, price, start, length: Segment(
            *(f"w{name}", f"e{epoch}", f"pool{name}", "m", devices, price, start, start + length)
        ),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(1, 8),
        st.floats(0, 100),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
    ),
    max_size=8,
    unique_by=lambda one: (one.replica_id, one.epoch, one.from_ms),
)
_works = st.lists(
    st.builds(
        lambda name, epoch, at, part, busy: Work(f"w{name}", f"e{epoch}", at, "m", "t", "", part, busy, 1),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 25_000),
        st.sampled_from(["useful", "failed", "cancelled", "withheld", "recompute"]),
        st.integers(0, 10**8),
    ),
    max_size=20,
)


@given(_segments, _works)
def test_the_parts_are_the_bill(segments: list[Segment], done: list[Work]) -> None:
    known = {(one.replica_id, one.epoch) for one in segments}
    lines = account(segments, [work for work in done if (work.replica_id, work.epoch) in known])
    whole = bill(segments)
    assert sum(amount.device_us for amount in lines.values()) == whole.device_us
    assert all(amount.device_us >= 0 for amount in lines.values())
    assert sum(amount.cost for amount in lines.values()) == pytest.approx(whole.cost)


def _row(
    kind: str = "COMPLETED", *, created: bool = True, withheld: int = 0, attempts: int = 1, reason: str = ""
) -> policy_pb2.UsageRow:
    settled = policy_pb2.SettleRequest(
        created=created,
        reason=reason,
        kind=f"TERMINAL_KIND_{kind}",
        num_withheld_tokens=withheld,
        num_output_tokens=10,
    )
    settled.reservation.response_id = "r1"
    settled.reservation.identity.tenant = "acme"
    for number in range(1, attempts + 1):
        attempt = settled.attempts.add(attempt=number, num_generated_tokens=10, device_us=1000)
        attempt.replica.id, attempt.replica.epoch = "w0", f"e{number}"
    return policy_pb2.UsageRow(settlement=settled, settled_at_ms=5)


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (_row(), [("useful", 1000, 10)]),
        (_row("INCOMPLETE"), [("useful", 1000, 10)]),
        (_row(withheld=4), [("withheld", 400, 4), ("useful", 600, 6)]),
        (_row("INCOMPLETE", withheld=4, reason="content_filter"), [("withheld", 1000, 10)]),
        (_row("FAILED"), [("failed", 1000, 10)]),
        (_row("CANCELLED"), [("cancelled", 1000, 10)]),
        (_row("UNSPECIFIED", created=False), [("failed", 1000, 10)]),
        (_row("UNSPECIFIED", created=False, reason="disconnect"), [("cancelled", 1000, 10)]),
        (_row(attempts=2), [("recompute", 1000, 10), ("useful", 1000, 10)]),
        (_row(attempts=0), []),
    ],
)
def test_each_ending_books_its_time(row: policy_pb2.UsageRow, parts: list[tuple[str, int, int]]) -> None:
    assert [(work.part, work.busy_us, work.num_tokens) for work in works([row])] == parts


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (_row(), [("w0", "useful", 1000, 10), ("p0", "useful", 500, 0)]),
        (_row("FAILED"), [("w0", "failed", 1000, 10), ("p0", "failed", 500, 0)]),
        (
            _row(withheld=4),
            [
                ("w0", "withheld", 400, 4),
                ("w0", "useful", 600, 6),
                ("p0", "withheld", 200, 0),
                ("p0", "useful", 300, 0),
            ],
        ),
    ],
)
def test_the_replica_that_computed_the_prompt_worked_for_the_same_response(
    row: policy_pb2.UsageRow, parts: list[tuple[str, str, int, int]]
) -> None:
    attempt = row.settlement.attempts[0]
    attempt.prefill.id, attempt.prefill.epoch, attempt.prefill_device_us = "p0", "e9", 500
    done = list(works([row]))
    assert [(work.replica_id, work.part, work.busy_us, work.num_tokens) for work in done] == parts
    here, there = Segment("w0", "e1", "d", "m", 1, 3.0, 0, 1000), Segment("p0", "e9", "p", "m", 2, 9.0, 0, 1000)
    lines = account([here, there], done)
    busy = {
        pool: sum(one.device_us for line, one in lines.items() if (line.pool, line.tenant) == (pool, "acme"))
        for pool in "dp"
    }
    assert busy == {"d": 1000, "p": 1000}
    assert sum(amount.device_us for amount in lines.values()) == bill([here, there]).device_us == 3_000_000


def test_a_correction_replaces_what_it_corrects() -> None:
    swept, owner = _row("FAILED"), _row()
    owner.correction = True
    assert [work.part for work in works([swept, owner])] == ["useful"]


def test_each_attempt_of_a_lost_gateways_response_is_in_the_bill_once() -> None:
    """Its replicas told of it one by one; a settlement that names both goes before what was closed beside it."""
    first, second = _row("FAILED", reason="gateway_lost"), _row("UNSPECIFIED", created=False)
    second.settlement.reason = "gateway_lost"
    second.settlement.reservation.response_id, second.settlement.attempt_of = "r1.2", "r1"
    second.settlement.attempts[0].attempt = 2
    assert [(work.part, work.busy_us) for work in works([first, second])] == [("failed", 1000), ("failed", 1000)]
    owner = _row(attempts=2)
    assert [work.part for work in works([first, second, owner])] == ["recompute", "useful"]


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (_row("UNSPECIFIED", created=False, reason="disconnect"), ["cancelled", "cancelled"]),
        (_row("CANCELLED", reason="client"), ["cancelled", "cancelled"]),
        (_row(), ["useful", "useful"]),
        (_row(attempts=2), ["recompute", "useful", "recompute"]),
    ],
)
def test_device_time_that_was_told_of_late_goes_where_its_attempt_went(
    whole: policy_pb2.UsageRow, parts: list[str]
) -> None:
    late = _row(created=False, reason=whole.settlement.reason)
    late.settlement.kind = whole.settlement.kind
    late.settlement.reservation.response_id, late.settlement.attempt_of = "r1.1.1", "r1"
    late.settlement.source = policy_pb2.SETTLEMENT_SOURCE_OWNER
    del late.settlement.attempts[:]
    late.settlement.attempts.add(attempt=1, device_us=70).replica.id = "w0"
    done = list(works([late, whole]))
    assert sorted(work.part for work in done) == sorted(parts)
    assert [(work.part, work.busy_us) for work in done if work.busy_us == 70] == [
        (parts[-1] if len(parts) == 2 else "recompute", 70)
    ]
    (alone,) = works([late])
    outside = "its settlement lies outside of the range, so nobody knows of a later attempt"
    assert (alone.busy_us, alone.part) == (70, parts[-1] if len(parts) == 2 else "useful"), outside


def test_the_report_has_room_for_every_part() -> None:
    assert fleet_pb2.CostRow(part="idle", device_us=2**63).device_us == 2**63
