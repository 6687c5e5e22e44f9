"""What follows from an engine process's silence, from a step that is overdue, and from its end."""

from __future__ import annotations

import asyncio
import math
from array import array
from pathlib import Path

from headrace.v1 import worker_pb2
from headrace_kit.health import Health
from headrace_worker.config import WorkerConfig
from headrace_worker.engine import EngineOutput
from headrace_worker.execution.scripted import ScriptedRunner
from headrace_worker.mailbox import Mailbox
from headrace_worker.messages import Alive, Phase, Ready
from headrace_worker.replica import Replica
from headrace_worker.scheduling.events import Accepted, Event, Finished, Refused, Tokens
from headrace_worker.scheduling.load import Load
from headrace_worker.supervision import SILENT_S, Supervision
from headrace_worker.watch import Watch

LOAD = Load(0, 0, 0, 0, 64, 0, 0, 0, 64, 0.0, None)


class Bench:
    """A supervision whose engine process is this test."""

    def __init__(self) -> None:
        self.now = 50.0
        self.config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), engine="scripted")
        self.health = Health()
        self.replica = Replica(self.config, "127.0.0.1:1", self.health)
        self.supervision = Supervision(self.config, self.replica, clock=lambda: self.now)
        self.hear = self.supervision._hear

    def become_ready(self) -> None:
        runner = ScriptedRunner(self.config)
        self.hear(Ready(runner.describe(), {"load": 1.0}))

    async def look(self) -> None:
        looking = asyncio.create_task(self.supervision.look())
        await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    def submit(self, mailbox: Mailbox, name: str, n: int = 1, handle: int = 100) -> None:
        prompt = array("I", [97]).tobytes()
        submit = worker_pb2.Submit(
            handle=handle,
            response_id=name,
            attempt=1,
            prompt_ids=prompt,
            max_output_tokens=9,
            n=n,
            replica_epoch=self.replica.epoch,
        )
        self.supervision.dispatch.submit(mailbox, submit)

    def step(self, *events: Event) -> None:
        self.hear(EngineOutput(1, events, LOAD))


def test_states_follow_the_start_up() -> None:
    bench = Bench()
    states = [bench.replica.state]
    bench.hear(Phase("loading", "weights", 0.43))
    assert bench.replica.progress == "loading weights 43%"
    bench.hear(Phase("warming", "largest step", 0.2))
    states.append(bench.replica.state)
    assert not bench.health.ready
    bench.become_ready()
    states.append(bench.replica.state)
    assert states == [
        worker_pb2.REPLICA_STATE_LOADING,
        worker_pb2.REPLICA_STATE_WARMING,
        worker_pb2.REPLICA_STATE_READY,
    ]
    assert bench.health.ready


async def test_a_silent_engine_is_degraded_until_it_speaks() -> None:
    bench = Bench()
    bench.become_ready()
    bench.now += SILENT_S + 0.1
    await bench.look()
    assert bench.replica.state == worker_pb2.REPLICA_STATE_DEGRADED
    assert not bench.health.ready
    bench.supervision.host._heard_s = bench.now
    await bench.look()
    assert bench.replica.state == worker_pb2.REPLICA_STATE_READY


async def test_an_overdue_step_is_a_stall_though_the_heart_beats() -> None:
    bench = Bench()
    bench.become_ready()
    bench.hear(Alive(due_s=bench.now + 10))
    await bench.look()
    assert bench.replica.ready
    bench.now += 10.1
    bench.supervision.host._heard_s = bench.now
    await bench.look()
    assert bench.replica.state == worker_pb2.REPLICA_STATE_DEGRADED
    bench.hear(Alive(due_s=math.inf))
    await bench.look()
    assert bench.replica.ready


def test_the_end_of_the_engine_ends_what_ran_and_refuses_what_waited() -> None:
    bench = Bench()
    bench.become_ready()
    dispatch = bench.supervision.dispatch
    mailbox = dispatch.open("g")
    bench.submit(mailbox, "running", n=2)
    bench.step(
        Accepted(1, "running", 1, 0, 3, 0.25),
        Tokens(1, (97, 98), None),
        Tokens(2, (97,), None),
        Finished(2, "running", 1, 1, "completed", "stop", 1, 0, 1, 1, 0, 0.25, 0.1, 0.0, 0.0, 3, 2),
    )
    bench.submit(mailbox, "waiting", handle=110)
    dispatch.lose_engine()
    frame = mailbox.take("e")
    assert [(final.choice, final.reason, final.num_generated_tokens) for final in frame.finals] == [
        (1, "stop", 1),
        (0, "worker_lost", 2),
    ]
    assert [final.handle for final in frame.finals] == [101, 100]
    assert [refused.reason for refused in frame.refused] == ["busy"]
    ack = worker_pb2.Ack(attempts=[worker_pb2.AttemptRef(response_id="running", attempt=1)])
    dispatch.ack(mailbox, ack)
    assert len(dispatch.attempts) == 0


def test_a_closed_attach_leaves_orphans_and_late_events_harm_nobody() -> None:
    bench = Bench()
    bench.become_ready()
    dispatch = bench.supervision.dispatch
    mailbox = dispatch.open("g")
    bench.submit(mailbox, "x")
    bench.step(Accepted(1, "x", 1, 0, 3, 0.0))
    dispatch.close(mailbox)
    bench.step(Tokens(1, (97,), None))
    bench.step(Finished(1, "x", 1, 0, "failed", "gateway_lost", 1, 0, 1, 1, 0, 0.0, 0.1, 0.0, 0.0, 3, 1))
    again = dispatch.open("g")
    assert [orphan.final.reason for orphan in again.take("e").orphans] == ["gateway_lost"]
    assert mailbox.take("e").finals == []
    bench.step(Tokens(77, (97,), None))


def test_a_handle_that_is_in_use_or_too_large_is_refused() -> None:
    bench = Bench()
    bench.become_ready()
    mailbox, other = bench.supervision.dispatch.open("g"), bench.supervision.dispatch.open("h")
    bench.submit(mailbox, "first", n=3)
    for handle in (99, 102, 2**64 - 1):
        bench.submit(mailbox, f"again-{handle}", n=2, handle=handle)
    refused = mailbox.take("e").refused
    assert [(each.handle, each.field) for each in refused] == [(99, "handle"), (102, "handle"), (2**64 - 1, "handle")]
    bench.submit(other, "elsewhere", n=3)
    assert not other.take("e").refused
    bench.step(Refused(1, "first", 1, "busy", "full"))
    mailbox.take("e")
    bench.submit(mailbox, "second", n=3)
    assert not mailbox.take("e").refused


def test_decisions_are_told_to_every_watcher() -> None:
    bench = Bench()
    bench.become_ready()
    dispatch = bench.supervision.dispatch
    for name in ("a", "b"):
        dispatch._note_decision(name)
    assert dispatch.decisions_since(0) == ["a", "b"]
    assert dispatch.decisions_since(1) == ["b"]
    assert dispatch.decisions_since(2) == []


async def test_who_is_attached_is_told_with_the_load() -> None:
    """So that a router knows of whom nothing can run here."""
    bench = Bench()
    bench.become_ready()
    dispatch = bench.supervision.dispatch
    events = Watch(bench.replica, dispatch, bench.supervision.pages).events(worker_pb2.WatchRequest())

    async def told() -> list[str]:
        async for event in events:
            if event.WhichOneof("event") == "load":
                return list(event.load.gateways)
        raise AssertionError("the watch ended")

    assert await told() == []
    first, again = dispatch.open("b"), dispatch.open("b")
    dispatch.open("a")
    bench.step()
    assert await told() == ["a", "b"]
    dispatch.close(first)
    assert dispatch.attached == {"a", "b"}, "it attached a second time before the first broke"
    dispatch.close(again)
    assert dispatch.attached == {"a"}
