"""The engine loop over the scripted runner, on a virtual clock: every request ends once, and nothing is left behind."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.v1.prefix_chain import hash_block
from headrace_worker.build import build_engine
from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.engine import Engine
from headrace_worker.execution.scripted import ScriptedRunner
from headrace_worker.perf.online_fit import OnlineFit
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Accepted, Event, Finished, Progress, Refused, Tokens
from headrace_worker.scheduling.request import Request


class Bench:
    """An engine whose clock moves only as far as it asks to sleep."""

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"engine": "scripted", "num_pages": 64, "max_running": 16, "max_waiting": 16}
        self.config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), **(defaults | settings))
        self.now = 100.0
        self.killed: list[str] = []
        self.runner = ScriptedRunner(self.config, clock=lambda: self.now, kill=self.killed.append)
        self.engine: Engine = build_engine(self.config, self.runner, hash_block, clock=lambda: self.now)
        self.events: list[Event] = []
        self.handles = iter(range(1, 10**9))

    def submit(self, *elements: object, n: int = 1, max_output: int = 32, **fields: Any) -> int:
        prompt = array("I", [256, *json.dumps(elements).encode()])
        handle = next(self.handles)
        for _ in range(n - 1):
            next(self.handles)
        self.engine.submit(Request(handle, f"r{handle}", 1, prompt, max_output, n, **fields))
        return handle

    def step(self) -> None:
        output = self.engine.step()
        if output is not None:
            self.events += output.events
            assert output.imbalances == ()
        assert audit(self.engine.scheduler) == ()

    def run(self, limit: int = 10_000) -> None:
        """Until idle."""
        for _ in range(limit):
            self.step()
            wait_s = self.engine.wait_s()
            if wait_s is None:
                return
            self.now += wait_s
        raise AssertionError("never idle")

    def of(self, kind: type, handle: int) -> Iterator[Any]:
        return (event for event in self.events if isinstance(event, kind) and event.handle == handle)

    def ids(self, handle: int) -> list[int]:
        return [token for event in self.of(Tokens, handle) for token in event.token_ids]

    def assert_clean(self) -> None:
        pool = self.engine.scheduler.pool
        assert pool.num_held == pool.num_quarantined == 0
        assert pool.num_free + pool.num_cached == pool.num_pages
        assert (self.engine._opened, self.engine._pieces, self.engine._device_s) == ({}, {}, {})
        assert self.runner._scripts == {}


def test_a_script_runs_to_its_end() -> None:
    bench = Bench()
    handle = bench.submit("a", "bc")
    bench.run()
    assert bench.ids(handle) == [97, 260, 257]
    (finished,) = bench.of(Finished, handle)
    assert (finished.kind, finished.reason) == ("completed", "stop")
    bench.assert_clean()


def test_the_loop_sleeps_through_a_stall() -> None:
    bench = Bench()
    bench.submit("a", "!stall(1000)", "b")
    bench.run(limit=20)
    assert bench.now == 1100.0


def test_a_queue_deadline_wakes_the_sleeping_loop() -> None:
    bench = Bench(num_pages=3)
    bench.submit("!stall(50)", max_output=20)
    late = bench.submit("a", max_output=20, queue_deadline_s=2.0)
    bench.run(limit=30)
    (refused,) = bench.of(Refused, late)
    assert refused.reason == "queue_deadline"


def test_a_cancel_takes_effect_by_the_second_step() -> None:
    bench = Bench()
    handle = bench.submit("!repeat(1000,x)", max_output=900)
    for _ in range(5):
        bench.step()
    bench.engine.cancel(Cancel(f"r{handle}", reason="disconnect"))
    bench.step()
    (finished,) = bench.of(Finished, handle)
    assert finished.reason == "disconnect"
    bench.run()
    bench.assert_clean()


def test_dying_kills_whom_the_script_names() -> None:
    bench = Bench()
    bench.submit("!die(engine)")
    bench.step()
    bench.submit("!die")
    for _ in range(3):
        bench.step()
    assert bench.killed[0] == "engine"
    assert "worker" in bench.killed


def test_a_recording_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^record: .*absent"):
        Bench(record=tmp_path / "absent" / "steps.jsonl")


def test_prompts_are_cut_by_what_the_engine_has_learned_of_its_steps() -> None:
    """A millisecond per token: beside a stream that may wait 100 ms, 6 pages of 16 fit and 7 do not."""
    bench = Bench(num_pages=512)
    times = bench.engine._times
    times._fit = OnlineFit(StepModel((1e-3, 1e-3, 0.0, 0.0, 0.0, 0.0), 256))
    bench.submit("!repeat(20,a)", inter_token_s=0.1)
    bench.step()
    times._model = times._fit.model
    long = bench.submit("x" * 400)
    bench.step()
    assert [event.num_prefilled for event in bench.of(Progress, long)] == [96]
    bench.run()
    bench.assert_clean()


def test_a_thousand_requests_that_never_run_leave_nothing() -> None:
    """B105: queue full, queue deadline, cancelled in the queue."""
    bench = Bench(num_pages=16, max_waiting=4)
    holder = bench.submit("!stall(1000000)", max_output=200)
    bench.step()
    for number in range(340):
        handles = [bench.submit("a", max_output=100, queue_deadline_s=0.5, fair_key=str(i)) for i in range(6)]
        if number % 2:
            bench.engine.cancel(Cancel(f"r{handles[0]}"))
        bench.step()
        bench.now += 1.0
        bench.step()
        assert all(len(list(bench.of(Refused, handle))) == 1 for handle in handles)
        bench.events.clear()
    bench.engine.cancel(Cancel(f"r{holder}"))
    bench.run()
    bench.assert_clean()


@settings(max_examples=60)
@given(data=st.data())
def test_random_requests_and_cancels_end_once_and_leave_nothing(data: st.DataObject) -> None:
    bench = Bench(num_pages=data.draw(st.sampled_from([12, 24, 64])), max_batch_tokens=64, max_chunk_tokens=32)
    elements = st.sampled_from(["a", "xyz", 257, "!err", "!stall(0.5)", "!rate(10)", "!repeat(7,z)"])
    submitted: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        script = data.draw(st.lists(elements, max_size=4))
        n = data.draw(st.integers(1, 3))
        deadline = data.draw(st.sampled_from([None, 0.2]))
        handle = bench.submit(*script, n=n, max_output=data.draw(st.integers(1, 40)), queue_deadline_s=deadline)
        submitted[handle] = n
        for _ in range(data.draw(st.integers(0, 3))):
            bench.step()
        if data.draw(st.booleans()):
            victim = data.draw(st.sampled_from(sorted(submitted)))
            bench.engine.cancel(Cancel(f"r{victim}", choice=data.draw(st.integers(-1, 2))))
    bench.run()
    for handle, n in submitted.items():
        refused, accepted = list(bench.of(Refused, handle)), list(bench.of(Accepted, handle))
        assert len(refused) + len(accepted) == 1
        if accepted:
            assert all(len(list(bench.of(Finished, handle + choice))) == 1 for choice in range(n))
    bench.assert_clean()
