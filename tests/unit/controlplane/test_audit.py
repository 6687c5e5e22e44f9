"""Between processes: what moves is not taken for a leak, and a leak is not taken for movement."""

from collections.abc import Sequence

import pytest

from headrace.v1 import policy_pb2
from headrace_controlplane.audit import Equation, Fleet, Reading, Tokens, audit
from headrace_controlplane.tallies import Tallies

WORKER = ("w0", "e1")


def broken(fleet: Fleet) -> list[str]:
    return [one.equation.partition(" =")[0] for one in audit(fleet) if not one.balanced]


@pytest.mark.parametrize(
    ("tokens", "names"),
    [
        (Tokens(before=100, journal=100, after=100), []),
        (Tokens(before=90, journal=95, after=100), []),  # settled while it was read
        (Tokens(before=100, journal=93, after=100), ["generated and handed over"]),  # a settlement was lost
        (Tokens(before=100, journal=107, after=100), ["generated and handed over"]),  # or was booked twice
    ],
)
def test_tokens_of_the_journal_lie_between_two_looks_at_the_worker(tokens: Tokens, names: list[str]) -> None:
    assert broken(Fleet(tokens={WORKER: tokens})) == names


@pytest.mark.parametrize(
    ("pairs", "leaks"),
    [
        ([(3, 3)], False),
        ([(3, 4), (6, 5)], False),  # moving
        ([(3, 4), (2, 2)], False),
        ([(3, 4), (2, 3), (0, 1)], True),
        ([(4, 3), (1, 0)], True),
    ],
)
def test_a_leak_shows_in_every_reading_on_the_same_side(pairs: Sequence[tuple[int, int]], leaks: bool) -> None:
    held = [Reading(held_by_gateways=left, given_by_policy=right) for left, right in pairs]
    assert broken(Fleet(readings=held)) == (["reservations that gateways hold"] if leaks else [])
    attempts = [Reading(attempts_of_gateways=left, attempts_of_routers=right) for left, right in pairs]
    assert broken(Fleet(readings=attempts)) == (["attempts of gateways"] if leaks else [])


def test_the_least_difference_is_shown() -> None:
    readings = [Reading(held_by_gateways=3, given_by_policy=9), Reading(held_by_gateways=3, given_by_policy=4)]
    shown = next(one for one in audit(Fleet(readings=readings)) if not one.balanced)
    assert (shown.left, shown.right) == (3, 4)


def test_what_a_process_says_of_itself_is_passed_on() -> None:
    own = Equation("gateway g", "begun = declined + settled + running", 3, 2, False)
    assert audit(Fleet(own=[own])) == [own]


def _row(name: str, *counts: int, epoch: str = "e1") -> policy_pb2.UsageRow:
    row = policy_pb2.UsageRow()
    row.settlement.reservation.response_id = name
    for count in counts:
        attempt = row.settlement.attempts.add(num_generated_tokens=count)
        attempt.replica.id, attempt.replica.epoch = "w0", epoch
    return row


def test_rows_that_are_read_twice_or_corrected_count_once() -> None:
    tallies = Tallies()
    tallies.add([_row("r1", 5), _row("r2"), _row("r3", 1, 2)], {WORKER})
    tallies.add([_row("r1", 5), _row("r2", 7)], {WORKER})
    assert tallies.of(WORKER) == 15


def test_processes_that_are_gone_are_forgotten_and_come_back_with_nothing_owed() -> None:
    tallies = Tallies()
    tallies.add([_row("r1", 5)], {WORKER})
    tallies.add([_row("r2", 3, epoch="e2")], {("w0", "e2")})
    assert (tallies.of(WORKER), tallies.of(("w0", "e2"))) == (0, 3)
    tallies.add([], set(), forget=False)
    assert tallies.of(("w0", "e2")) == 3


def test_an_attempt_closed_beside_its_response_counts_once() -> None:
    """A lost gateway's response had two attempts; their workers' finals came one by one, and then its owner's word."""
    first, second, whole = _row("r1", 5), _row("r1.2", 7), _row("r1", 5, 7)
    second.settlement.attempt_of, second.settlement.attempts[0].attempt = "r1", 2
    tallies = Tallies()
    tallies.add([first, second], {WORKER})
    assert tallies.of(WORKER) == 12
    tallies.add([second, whole], {WORKER})
    assert tallies.of(WORKER) == 12
    early = Tallies()
    early.add([second], {WORKER})
    early.add([whole], {WORKER})
    assert early.of(WORKER) == 12
