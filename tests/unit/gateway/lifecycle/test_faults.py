"""Clients that leave, replicas that refuse, die or drain, deadlines that pass: who hears what, and what it costs."""

from __future__ import annotations

import pytest

from headrace_gateway.lifecycle.events import (
    Accepted,
    AdmitRefused,
    Admitted,
    AttemptLost,
    AttemptRefused,
    ChoiceFinal,
    ClientGone,
    GatewayStops,
    PolicyLost,
    Routed,
    RouteRefused,
    Start,
    Tick,
    Tokens,
)
from headrace_gateway.lifecycle.outputs import Ack, Cancel, Created, Delta, Report, Route, Settle, Submit, Terminal
from headrace_gateway.lifecycle.settlement import Prefill

from .drive import Drive, decision


def queued() -> Drive:
    drive = Drive()
    drive.feed(Start(), Admitted(), Routed(1, decision(1)))
    return drive


def refused_again(drive: Drive, attempt: int, reason: str = "busy") -> None:
    drive.feed(Routed(attempt, decision(attempt)), AttemptRefused(attempt, reason, "full", "", 0.5))


# ---- before created --------------------------------------------------------------------------------------------------


def test_a_refused_admission_is_a_status_and_settles_nothing() -> None:
    drive = Drive()
    drive.feed(Start(), AdmitRefused("rpm", "too many", "", 3.0))
    assert (drive.refusal.reason, drive.refusal.retry_after_s) == ("rpm", 3.0)
    assert drive.of(Settle) == []


def test_an_admission_without_an_answer_is_released() -> None:
    drive = Drive()
    drive.feed(Start(), PolicyLost())
    assert drive.refusal.reason == "policy_unavailable"
    assert (drive.settlement.created, drive.settlement.kind) == (False, "refused")


def test_a_busy_replica_is_excluded_and_another_asked_twice_at_most() -> None:
    drive = queued()
    drive.feed(AttemptRefused(1, "busy"))
    refused_again(drive, 2)
    refused_again(drive, 3)
    assert [route.excluded for route in drive.of(Route)] == [(), ("w1",), ("w1", "w2")]
    assert (drive.refusal.reason, drive.refusal.retry_after_s) == ("busy", 0.5)
    assert [report.outcome for report in drive.of(Report)] == ["refused"] * 3


def test_no_other_replica_after_a_busy_one_is_busy() -> None:
    drive = queued()
    drive.feed(AttemptRefused(1, "busy", "full", "", 2.0))
    drive.observer.answered(2, routed=False)
    drive.feed(RouteRefused(2, "no_replica"))
    assert (drive.refusal.reason, drive.refusal.retry_after_s) == ("busy", 2.0)


@pytest.mark.parametrize("reason", ["share_exceeded", "prompt_exceeds_capacity", "invalid_grammar", "queue_deadline"])
def test_what_another_replica_would_say_too_is_final(reason: str) -> None:
    drive = queued()
    drive.feed(AttemptRefused(1, reason, "why", "grammar"))
    assert (drive.refusal.reason, drive.refusal.detail, drive.refusal.field) == (reason, "why", "grammar")
    assert drive.settlement.counts.num_output == 0


def test_busy_after_the_queue_deadline_is_not_asked_again() -> None:
    drive = queued()
    drive.now = 10.0
    drive.feed(AttemptRefused(1, "busy"))
    assert drive.refusal.reason == "busy" and len(drive.of(Route)) == 1


def test_the_queue_deadline_spans_reroutes() -> None:
    drive = queued()
    drive.now = 4.0
    drive.feed(AttemptRefused(1, "busy"), Routed(2, decision(2)))
    assert [submit.queue_s for submit in drive.of(Submit)] == [10.0, 6.0]


def test_a_worker_that_never_answers_is_given_up_after_the_queue_deadline() -> None:
    drive = queued()
    drive.tick()
    assert drive.now == 12.0 and drive.refusal.reason == "queue_deadline"
    assert drive.of(Cancel) == [Cancel(1, -1, "deadline", None)]
    assert [report.outcome for report in drive.of(Report)] == ["failed"]


def test_the_total_deadline_before_created_is_a_status() -> None:
    drive = Drive(client_deadline_s=5.0)
    drive.feed(Start(), Admitted())
    drive.tick()
    assert drive.now == pytest.approx(4.9) and drive.refusal.reason == "deadline"


def test_a_decision_that_comes_after_the_end_is_still_reported() -> None:
    drive = Drive()
    drive.feed(Start(), Admitted(), ClientGone("disconnect"))
    assert drive.machine.ended and not drive.machine.done
    drive.feed(Routed(1, decision(1)))
    assert drive.machine.done and drive.of(Report) == [Report(1, "d1", "cancelled", "", "routed", 0)]


def test_a_cancel_before_created_cancels_the_attempt_and_charges_nothing() -> None:  # decision 10
    drive = queued()
    late = ChoiceFinal(1, 0, "cancelled", "client", 1, device_us=700)
    drive.feed(ClientGone("client"), Accepted(1), Tokens(1, 0, 1, "x", 1), late)
    assert drive.refusal.reason == "client" and drive.of(Created) == []
    assert drive.of(Cancel) == [Cancel(1, -1, "client", None)]
    assert drive.settlement.kind == "refused" and drive.of(Ack) == [Ack(1, num_settled=0, late_device_us=700)]


def test_a_late_final_tells_what_was_prefilled_elsewhere() -> None:
    drive, prefill = queued(), Prefill("p0", "e1", 9000)
    drive.feed(ClientGone("client"), ChoiceFinal(1, 0, "cancelled", "client", 1, device_us=7, prefill=prefill))
    assert drive.of(Ack) == [Ack(1, num_settled=0, late_device_us=7, late_prefill=prefill)]


def test_a_gateway_that_stops_refuses_who_has_no_response_yet() -> None:
    drive = queued()
    drive.feed(GatewayStops(), Accepted(1))
    assert drive.refusal.reason == "draining" and drive.of(Created) == []
    assert drive.settlement.kind == "refused"


# ---- after created ---------------------------------------------------------------------------------------------------


def test_a_worker_lost_after_text_fails_and_is_not_continued_elsewhere() -> None:  # B88
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "d1", 1), Tokens(1, 0, 1, "d2", 1), AttemptLost(1))
    assert drive.stream == ["created", "d1", "d2", "failed:worker_lost"]
    assert len(drive.of(Submit)) == 1
    assert (drive.settlement.kind, drive.settlement.counts.num_output) == ("failed", 2)
    assert [report.outcome for report in drive.of(Report)] == ["lost"]


def test_a_worker_lost_before_text_is_replaced_once_under_one_identity() -> None:  # B88
    drive = Drive()
    drive.accept()
    drive.feed(AttemptLost(1), Routed(2, decision(2)), Accepted(2))
    drive.feed(Tokens(2, 0, 1, "a", 1), ChoiceFinal(2, 0, "stop", "", 2))
    assert drive.stream == ["created", "a", "finished:stop", "completed:stop"]
    assert [route.excluded for route in drive.of(Route)] == [(), ("w1",)]
    assert drive.of(Cancel) == [Cancel(1, -1, "superseded", None)]


def test_a_second_loss_fails() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(AttemptLost(1), Routed(2, decision(2)), Accepted(2), AttemptLost(2))
    assert drive.stream == ["created", "failed:worker_lost"]


@pytest.mark.parametrize("reason", ["replica_draining", "prefill_lost", "kv_expired"])
def test_what_another_replica_can_repair_is_moved_before_text(reason: str) -> None:
    drive = Drive()
    drive.accept()
    drive.feed(ChoiceFinal(1, 0, "failed", reason, 0))
    assert len(drive.of(Route)) == 2 and drive.of(Terminal) == []


def test_a_draining_replica_after_text_fails_with_that_reason() -> None:  # B76
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "a", 1), ChoiceFinal(1, 0, "failed", "replica_draining", 1))
    assert drive.stream[-1] == "failed:replica_draining"


def test_a_refusal_of_a_later_attempt_fails_with_the_first_reason() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(AttemptLost(1), Routed(2, decision(2)), AttemptRefused(2, "busy", "full"))
    assert (drive.terminal.kind, drive.terminal.reason) == ("failed", "worker_lost")


def test_no_replica_for_a_later_attempt_fails_with_the_first_reason() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(AttemptLost(1))
    drive.observer.answered(2, routed=False)
    drive.feed(RouteRefused(2, "no_replica"))
    assert (drive.terminal.kind, drive.terminal.reason) == ("failed", "worker_lost")


def test_frames_of_an_old_attempt_are_dropped_and_counted() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "", 0), AttemptLost(1), Routed(2, decision(2)), Accepted(2))
    assert drive.feed(Tokens(1, 0, 1, "old", 1)) == []
    drive.feed(ChoiceFinal(1, 0, "cancelled", "superseded", 4), ChoiceFinal(2, 0, "stop", "", 3))
    counts = drive.settlement.counts
    assert (counts.num_output, counts.num_old_attempt) == (3, 4)
    assert [record.num_generated for record in drive.settlement.attempts] == [4, 3]
    assert drive.of(Delta) == [] and set(drive.of(Ack)) == {Ack(1), Ack(2)}


def test_a_cancel_reaches_every_choice_and_charges_what_was_generated() -> None:  # B25, B64
    drive = Drive(3)
    drive.accept()
    drive.feed(*[Tokens(1, number % 3, 1, "x", 1) for number in range(5)], ClientGone("disconnect"))
    assert drive.of(Cancel) == [Cancel(1, -1, "disconnect", None)] and drive.of(Terminal) == []
    drive.feed(*[ChoiceFinal(1, index, "cancelled", "disconnect", 3) for index in range(3)])
    assert drive.stream[-1] == "cancelled:disconnect"
    assert drive.settlement.counts.num_output == drive.terminal.usage.num_output_tokens == 9


def test_a_cancel_does_not_wait_for_a_silent_worker() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "ab", 2), ClientGone("client"))
    drive.tick()
    assert drive.now == 0.5 and drive.stream[-1] == "cancelled:client"
    assert drive.settlement.counts.num_output == 2


def test_a_cancel_after_the_end_changes_nothing() -> None:  # B114
    drive = Drive()
    drive.accept()
    drive.feed(ChoiceFinal(1, 0, "stop", "", 1))
    assert drive.feed(ClientGone("client"), ClientGone("disconnect"), Tick()) == []


def test_a_cancel_while_the_overshoot_is_awaited_does_not_overrule_completion() -> None:  # B114
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "a", 1, stop_at=1), ClientGone("client"), ChoiceFinal(1, 0, "cancelled", "stop", 1))
    assert drive.stream[-1] == "completed:stop"


def test_a_cancel_that_came_through_another_gateway_ends_it_as_cancelled() -> None:
    drive = Drive(2)
    drive.accept()
    drive.feed(ChoiceFinal(1, 0, "cancelled", "client", 1), ChoiceFinal(1, 1, "cancelled", "client", 2))
    assert drive.stream[-1] == "cancelled:client"


def test_the_stream_ends_100_ms_before_the_clients_deadline() -> None:
    drive = Drive(client_deadline_s=5.0)
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "a", 1))
    drive.tick()
    assert drive.now == pytest.approx(4.9) and drive.of(Cancel) == [Cancel(1, -1, "deadline", None)]
    drive.tick()
    assert drive.now <= 4.95 + 1e-9 and drive.stream[-1] == "failed:deadline"
    assert [report.outcome for report in drive.of(Report)] == ["cancelled"]


def test_losing_the_worker_after_every_choice_ended_changes_nothing() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 1, "a", 1, stop_at=1), AttemptLost(1))
    assert drive.stream[-1] == "completed:stop" and drive.settlement.counts.num_output == 1


def test_settlement_comes_before_the_terminal() -> None:
    drive = Drive()
    drive.accept()
    kinds = [type(output) for output in drive.feed(ChoiceFinal(1, 0, "stop", "", 1))]
    assert kinds.index(Settle) < kinds.index(Terminal) == len(kinds) - 1


def test_a_gateway_that_stops_fails_what_still_runs_and_nobody_is_blamed_or_charged() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "ab", 2), GatewayStops(), ChoiceFinal(1, 0, "cancelled", "superseded", 2))
    assert (drive.terminal.kind, drive.terminal.reason) == ("failed", "gateway_lost")
    assert (drive.settlement.kind, drive.settlement.counts.num_output) == ("failed", 2)
    assert [report.outcome for report in drive.of(Report)] == ["cancelled"]
    assert drive.feed(GatewayStops()) == []


def test_the_worker_is_told_what_the_settlement_had_of_tokens_that_came_after_it() -> None:
    drive = Drive()
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "ab", 2), ClientGone("disconnect"))
    drive.tick()
    assert drive.settlement.counts.num_output == 2
    drive.feed(Tokens(1, 0, 3, "cde", 3), ChoiceFinal(1, 0, "cancelled", "disconnect", 5))
    assert drive.of(Ack) == [Ack(1, num_settled=2)]


def test_so_it_is_of_a_choice_whose_final_was_not_there_for_the_settlement() -> None:
    drive = Drive(n=2)
    drive.accept()
    drive.feed(Tokens(1, 0, 2, "ab", 2), Tokens(1, 1, 1, "x", 1), ClientGone("disconnect"))
    drive.feed(ChoiceFinal(1, 0, "cancelled", "disconnect", 4))
    drive.tick()
    assert drive.settlement.counts.num_output == 5
    drive.feed(Tokens(1, 1, 2, "yz", 2), ChoiceFinal(1, 1, "cancelled", "disconnect", 3))
    assert drive.of(Ack) == [Ack(1, num_settled=5), Ack(1, num_settled=5)]
