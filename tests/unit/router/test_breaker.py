"""Circuit breakers: what opens, what closes, what says nothing."""

import pytest

from headrace_kit.errors import REASONS
from headrace_router.breaker import BASE_S, CAP_S, PROBE_S, Breaker, judge


def breaker_after(*verdicts: str, jitter: float = 1.0) -> Breaker:
    breaker = Breaker()
    for verdict in verdicts:
        breaker.on_outcome(verdict, 0.0, jitter)  # type: ignore[arg-type]
    return breaker


def test_client_errors_never_open_it() -> None:
    """B78: 50 prompts that are too long leave it closed, and the next request goes there."""
    verdict = judge("refused", "prompt_exceeds_capacity")
    assert breaker_after(*[verdict] * 50).admits(0.0)


@pytest.mark.parametrize("reason", [name for name, row in REASONS.items() if 400 <= row.http < 500])
def test_no_4xx_says_anything_about_a_replica(reason: str) -> None:
    assert judge("refused", reason) == "neutral"


def test_a_full_waiting_room_says_nothing() -> None:
    """B79: busy ten times, then idle: the next request is served at once."""
    assert breaker_after(*[judge("refused", "busy")] * 10).admits(0.0)


def test_five_resets_open_it() -> None:
    """B79."""
    verdict = judge("lost", "worker_lost")
    assert breaker_after(*[verdict] * 4).admits(0.0)
    assert not breaker_after(*[verdict] * 5).admits(0.0)


def test_a_success_starts_the_count_anew() -> None:
    """B79: three resets and one success leave it closed, and four more do not open it."""
    lost, good = judge("lost", "worker_lost"), judge("completed", "")
    assert breaker_after(lost, lost, lost, good, lost, lost, lost, lost).admits(0.0)


@pytest.mark.parametrize(
    ("outcome", "reason", "verdict"),
    [
        ("completed", "", "success"),
        ("incomplete", "length", "success"),
        ("cancelled", "client", "neutral"),
        ("refused", "queue_deadline", "neutral"),
        ("refused", "draining", "neutral"),
        ("failed", "engine_error", "fault"),
        ("failed", "worker_lost", "fault"),
        ("failed", "replica_draining", "neutral"),
        ("failed", "policy_lost", "neutral"),
        ("failed", "deadline", "neutral"),
        ("lost", "", "fault"),
    ],
)
def test_outcomes_are_judged_by_whose_fault_they_are(outcome: str, reason: str, verdict: str) -> None:
    assert judge(outcome, reason) == verdict


def test_half_open_lets_one_probe_through_at_a_time() -> None:
    breaker = breaker_after(*["fault"] * 5)
    assert not breaker.admits(BASE_S - 0.01)
    assert breaker.admits(BASE_S)
    breaker.on_pick(BASE_S)
    assert not breaker.admits(BASE_S + 1)
    breaker.on_outcome("success", BASE_S + 2, 1.0)
    assert breaker.admits(BASE_S + 2)
    assert breaker == Breaker()


def test_a_probe_that_fails_doubles_the_wait_up_to_a_limit() -> None:
    breaker, now, waits = breaker_after(*["fault"] * 5), 0.0, []
    for _ in range(8):
        waits.append(breaker.retry_after_s(now))
        now += waits[-1]
        assert breaker.admits(now)
        breaker.on_pick(now)
        breaker.on_outcome("fault", now, 1.0)
    assert waits == [1, 2, 4, 8, 16, CAP_S, CAP_S, CAP_S]


@pytest.mark.parametrize(("jitter", "wait_s"), [(0.0, BASE_S / 2), (1.0, BASE_S)])
def test_the_wait_is_jittered(jitter: float, wait_s: float) -> None:
    assert breaker_after(*["fault"] * 5, jitter=jitter).retry_after_s(0.0) == wait_s


def test_a_probe_that_says_nothing_makes_way_for_the_next() -> None:
    breaker = breaker_after(*["fault"] * 5)
    breaker.on_pick(BASE_S)
    breaker.on_outcome("neutral", BASE_S + 1, 1.0)
    assert breaker.admits(BASE_S + 1)


def test_a_probe_that_nobody_reports_does_not_shut_it_for_ever() -> None:
    breaker = breaker_after(*["fault"] * 5)
    breaker.on_pick(BASE_S)
    assert not breaker.admits(BASE_S + PROBE_S - 0.1)
    assert breaker.admits(BASE_S + PROBE_S)


def test_late_faults_of_requests_from_before_do_not_lengthen_the_wait() -> None:
    breaker = breaker_after(*["fault"] * 20)
    assert breaker.retry_after_s(0.0) == BASE_S
