"""The worker's books: they balance whatever becomes of an attempt, and a leak of any kind shows in its equation."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.v1 import worker_pb2
from headrace_kit.health import Health
from headrace_worker.config import WorkerConfig
from headrace_worker.dispatch import Dispatch
from headrace_worker.engine import EngineOutput
from headrace_worker.execution.runner import RunnerDescription
from headrace_worker.mailbox import Mailbox
from headrace_worker.messages import Ready
from headrace_worker.replica import Replica
from headrace_worker.scheduling.events import Accepted, Event, Finished, Refused, Tokens
from headrace_worker.scheduling.load import Load

LOAD = Load(0, 0, 0, 0, 6, 1, 2, 1, 10, 0.0, None)
SHAPE = RunnerDescription("scripted", "m", "r", b"f", 300, frozenset(), 1000, 16, 10, "float32")


class Bench:
    """A dispatch with one gateway; `tell` plays the engine."""

    def __init__(self) -> None:
        config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted")
        self.replica = Replica(config, "127.0.0.1:1", Health())
        self.replica.note_ready(Ready(SHAPE, {}))
        self.dispatch = Dispatch(self.replica, lambda command: None)
        self.mailbox: Mailbox = self.dispatch.open("g")

    def submit(self, number: int) -> int:
        """Returns the engine's handle of it."""
        self.dispatch.submit(
            self.mailbox,
            worker_pb2.Submit(
                handle=number,
                response_id=f"r{number}",
                attempt=1,
                n=1,
                prompt_ids=b"\\1\\0\\0\\0",
                max_output_tokens=9,
                replica_epoch=self.replica.epoch,
            ),
        )
        attempt = self.dispatch.attempts.find(f"r{number}", 1)
        assert attempt is not None
        return attempt.handle

    def tell(self, *events: Event, load: Load = LOAD) -> None:
        self.dispatch.deliver(EngineOutput(1, events, load))

    def run(self, number: int) -> None:
        """One attempt to its end: three tokens, and one late."""
        handle = self.submit(number)
        self.tell(Accepted(handle, f"r{number}", 1, 0, 1, 0.0), Tokens(handle, (1, 2, 3), None))
        self.tell(_finished(handle, number))

    def ack(self, number: int) -> None:
        self.dispatch.ack(
            self.mailbox, worker_pb2.Ack(attempts=[worker_pb2.AttemptRef(response_id=f"r{number}", attempt=1)])
        )

    def broken(self) -> list[str]:
        report = self.dispatch.books.report(self.replica.ref, self.replica.load, self.dispatch.attempts)
        return [row.equation.partition(" =")[0] for row in report.rows if not row.balanced]

    def handed_over(self) -> int:
        report = self.dispatch.books.report(self.replica.ref, self.replica.load, self.dispatch.attempts)
        return sum(row.num_generated_tokens for row in report.tokens)


def _finished(handle: int, number: int, num_generated: int = 3) -> Finished:
    return Finished(
        handle=handle,
        response_id=f"r{number}",
        attempt=1,
        choice=0,
        kind="incomplete",
        reason="length",
        num_prompt=1,
        cached_tokens=0,
        num_generated=num_generated,
        accepted_count=num_generated,
        num_late_steps=1,
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        worst_gap_s=0.0,
        promised_pages=1,
        used_pages=1,
    )


def test_every_way_out_balances() -> None:
    bench = Bench()
    bench.run(1)
    assert (bench.broken(), bench.handed_over()) == ([], 0)
    bench.ack(1)
    assert bench.handed_over() == 4
    refused = bench.submit(2)
    bench.tell(Refused(refused, "r2", 1, "busy", "full"))
    running = bench.submit(3)
    bench.tell(Accepted(running, "r3", 1, 0, 1, 0.0), Tokens(running, (7,), None))
    bench.submit(4)
    assert bench.broken() == []
    bench.dispatch.lose_engine()
    bench.ack(3)
    assert (bench.broken(), bench.handed_over()) == ([], 5)


def test_tokens_that_came_after_the_settlement_are_told_apart() -> None:
    bench = Bench()
    bench.run(1)
    late = worker_pb2.AttemptRef(response_id="r1", attempt=1, num_settled_tokens=1)
    bench.dispatch.ack(bench.mailbox, worker_pb2.Ack(attempts=[late]))
    report = bench.dispatch.books.report(bench.replica.ref, bench.replica.load, bench.dispatch.attempts)
    [tokens] = report.tokens
    assert (tokens.num_generated_tokens, tokens.num_discarded_tokens, bench.broken()) == (1, 3, [])


def _lose_an_attempt(bench: Bench) -> None:
    attempt = bench.dispatch.attempts.find("r1", 1)
    assert attempt is not None
    bench.dispatch.attempts.forget(attempt)


def _miscount(bench: Bench) -> None:
    handle = bench.submit(2)
    bench.tell(Accepted(handle, "r2", 1, 0, 1, 0.0), Tokens(handle, (1,), None), _finished(handle, 2, num_generated=5))


def _lose_a_page(bench: Bench) -> None:
    bench.tell(load=LOAD._replace(num_free_pages=5))


def _hold_a_page(bench: Bench) -> None:
    bench.dispatch.deliver(EngineOutput(1, (), LOAD, imbalances=("held pages when idle: expected 0, is 1",)))


@pytest.mark.parametrize(
    ("leak", "equation"),
    [
        (_lose_an_attempt, "submitted"),
        (_miscount, "generated"),
        (_lose_a_page, "pages"),
        (_hold_a_page, "imbalances that the engine found when idle"),
    ],
)
def test_a_leak_shows_in_its_equation(leak: Callable[[Bench], None], equation: str) -> None:
    bench = Bench()
    bench.run(1)
    leak(bench)
    assert bench.broken() == [equation]
