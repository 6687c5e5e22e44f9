"""Orphans: for two seconds their own gateway's, then anybody's, to one at a time until acknowledged."""

from __future__ import annotations

from headrace.v1 import worker_pb2
from headrace_worker.attempts import Attempt
from headrace_worker.mailbox import Mailbox
from headrace_worker.orphans import RESERVED_S, Orphans


def ended_attempt(name: str, gateway_id: str = "a", n: int = 1) -> Attempt:
    submit = worker_pb2.Submit(response_id=name, attempt=1, n=n, handle=1, replica_epoch="then")
    finals = [worker_pb2.Final(response_id=name, attempt=1, choice=choice) for choice in range(n)]
    return Attempt(submit, 1, gateway_id, None, finals=finals)


def offered(mailbox: Mailbox) -> list[str]:
    return [orphan.final.response_id for orphan in mailbox.take("e").orphans]


def test_only_its_own_gateway_gets_an_orphan_at_first() -> None:
    orphans, own, other = Orphans("r"), Mailbox(), Mailbox()
    orphans.attach(other, "b")
    orphans.add(ended_attempt("x"), 0.0)
    orphans.offer(RESERVED_S - 0.01)
    assert offered(other) == []
    orphans.attach(own, "a")
    orphans.offer(RESERVED_S - 0.01)
    assert (offered(own), offered(other)) == (["x"], [])


def test_then_anybody_gets_it_and_only_one() -> None:
    orphans, first, second = Orphans("r"), Mailbox(), Mailbox()
    orphans.attach(first, "b")
    orphans.attach(second, "c")
    orphans.add(ended_attempt("x", n=2), 0.0)
    orphans.offer(RESERVED_S)
    orphans.offer(RESERVED_S + 1)
    assert (offered(first), offered(second)) == (["x", "x"], [])


def test_it_is_offered_again_when_the_taker_goes_away() -> None:
    orphans, first, second = Orphans("r"), Mailbox(), Mailbox()
    orphans.attach(first, "b")
    attempt = ended_attempt("x")
    orphans.add(attempt, 0.0)
    orphans.offer(5.0)
    orphans.detach(first)
    orphans.attach(second, "c")
    orphans.offer(5.0)
    assert offered(second) == ["x"]
    orphans.discard(attempt)
    orphans.detach(second)
    assert len(orphans) == 0


def test_what_has_not_ended_is_not_offered_yet() -> None:
    orphans, mailbox = Orphans("r"), Mailbox()
    orphans.attach(mailbox, "a")
    attempt = ended_attempt("x", n=2)
    last = attempt.finals.pop()
    orphans.add(attempt, 0.0)
    orphans.offer(9.0)
    assert offered(mailbox) == []
    attempt.finals.append(last)
    orphans.offer(9.0)
    assert offered(mailbox) == ["x", "x"]


def test_it_names_the_process_that_it_ran_on() -> None:
    orphans, mailbox = Orphans("r"), Mailbox()
    orphans.attach(mailbox, "a")
    orphans.add(ended_attempt("x"), 0.0)
    orphans.offer(0.0)
    (orphan,) = mailbox.take("now").orphans
    assert (orphan.replica.id, orphan.replica.epoch) == ("r", "then")
