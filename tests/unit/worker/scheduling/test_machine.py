"""Any interleaving of submits, steps, results, cancels and time keeps every promise of the scheduler.

After every rule the audit balances. The paper machine checks each row's context. At the end everybody has had exactly
one outcome, nothing is held, and every token is the one that the request alone would have got.
"""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.worker.scheduling.fakes import END, Driver, Outcome, make_limits

_STREAM = tuple(hashlib.shake_256(b"prompts").digest(4096))


class FlakyModel:
    """Draws by digest of the context; ends, stalls and errors come from the digest too, so they repeat."""

    def __init__(self, stalls: bool, errors: bool) -> None:
        self.stalls = stalls
        self.errors = errors
        self.num_calls = 0

    def token(self, context: tuple[int, ...], choice: int) -> int | str:
        digest = hashlib.sha256(repr((context, choice)).encode()).digest()
        if digest[1] < 12:
            return END
        if self.errors and digest[1] > 252:
            return "engine_error"
        return digest[0]

    def __call__(self, context: tuple[int, ...], choice: int) -> tuple[int, ...] | str:
        self.num_calls += 1
        if self.stalls and self.num_calls % 5 == 0:
            return ()
        drawn = self.token(context, choice)
        return drawn if isinstance(drawn, str) else (drawn,)

    def alone(self, outcome: Outcome, choice: int) -> list[int | str]:
        """The tokens (or the error) of a choice computed with no scheduler at all."""
        context = list(outcome.request.prompt_ids)
        drawn: list[int | str] = []
        while len(drawn) < outcome.request.max_output:
            drawn.append(self.token(tuple(context), choice))
            if drawn[-1] == END or isinstance(drawn[-1], str):
                break
            context.append(int(drawn[-1]))
        return drawn


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        pages=st.tuples(st.sampled_from([16, 32, 48]), st.one_of(st.integers(3, 12), st.integers(3, 40))),
        room=st.tuples(st.integers(2, 6), st.integers(1, 8)),
        chunk_pages=st.integers(1, 3),
        depth=st.integers(1, 3),
        overlap=st.booleans(),
        errors=st.booleans(),
        overrun=st.sampled_from([0.0, 0.05, 0.5]),
    )
    def start(
        self,
        pages: tuple[int, int],
        room: tuple[int, int],
        chunk_pages: int,
        depth: int,
        overlap: bool,
        errors: bool,
        overrun: float,
    ) -> None:
        page_tokens, num_pages = pages
        limits = make_limits(
            page_tokens=page_tokens,
            num_pages=num_pages,
            max_running=room[0],
            max_waiting=room[1],
            max_chunk_tokens=page_tokens * chunk_pages,
            overlap=overlap,
            overrun=overrun,
            depth=1 if overlap else depth,
        )
        # A stalling engine does not overlap: nothing could be on the device for the next step to use.
        self.model = FlakyModel(stalls=not overlap, errors=errors)
        self.driver = Driver(limits, self.model, depth)
        self.transfers: list[int] = []

    @rule(
        start=st.sampled_from([0, 0, 0, 16, 100]),
        num_prompt=st.integers(1, 200),
        fork_at=st.integers(0, 200),
        max_output=st.integers(1, 40),
        n=st.integers(1, 3),
        fair_key=st.sampled_from("abc"),
        priority=st.integers(0, 2),
        queue_deadline_s=st.sampled_from([None, 0.05, 1.0]),
        statistical=st.booleans(),
    )
    def submit(self, start: int, num_prompt: int, fork_at: int, max_output: int, n: int, **fields: object) -> None:
        # Prompts share a stream up to a point of their own, as conversations do.
        prompt = (_STREAM[start : start + fork_at] + _STREAM[2000 + fork_at :])[:num_prompt]
        self.driver.submit(prompt, max_output, n=n, **fields)
        self.driver.check()

    @rule()
    def launch(self) -> None:
        if len(self.driver.results) < self.driver.depth:
            self.driver.launch()
        self.driver.check()

    @precondition(lambda self: self.driver.results)
    @rule()
    def collect(self) -> None:
        self.driver.collect()
        self.driver.check()

    @rule(num_steps=st.integers(1, 20))
    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.driver.step()
            self.driver.check()

    @precondition(lambda self: self.driver.outcomes)
    @rule(data=st.data(), choice=st.integers(-1, 3), reason=st.sampled_from(["client", "stop"]))
    def cancel(self, data: st.DataObject, choice: int, reason: str) -> None:
        outcome = data.draw(st.sampled_from(list(self.driver.outcomes.values())))
        self.driver.cancel(outcome, choice, reason)
        self.driver.check()

    @rule()
    def clear_cache(self) -> None:
        self.driver.scheduler.clear_cache(self.driver.scheduler.pool.events.epoch + 1)
        self.driver.check()

    @precondition(lambda self: self.driver.scheduler.running.groups)
    @rule(data=st.data())
    def begin_transfer(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.driver.scheduler.running.groups))
        pages = group.prompt.page_table if not group.forked else group.live[0].page_table
        for page in pages:
            self.driver.scheduler.pool.begin_transfer(page)
        self.transfers.extend(pages)
        self.driver.check()

    @precondition(lambda self: self.transfers)
    @rule(num_pages=st.integers(1, 8))
    def end_transfers(self, num_pages: int) -> None:
        for _ in range(min(num_pages, len(self.transfers))):
            self.driver.scheduler.pool.end_transfer(self.transfers.pop(0))
        self.driver.check()

    @rule(seconds=st.sampled_from([0.03, 0.6]))
    def wait(self, seconds: float) -> None:
        self.driver.now += seconds

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.end_transfers(len(self.transfers))
        self.driver.run()
        assert all(outcome.is_over for outcome in self.driver.outcomes.values())
        for outcome in self.driver.outcomes.values():
            self._check_tokens(outcome)

    def _check_tokens(self, outcome: Outcome) -> None:
        for choice, finished in outcome.finished.items():
            alone, got = self.model.alone(outcome, choice), outcome.tokens[choice]
            assert got == alone[: len(got)]
            assert finished.reason != "kv_exhausted"
            if finished.kind == "incomplete":
                assert len(got) == outcome.request.max_output
            if finished.kind == "completed" and finished.reason == "stop" and got == alone:
                assert got[-1:] == [END] or finished.num_generated < outcome.request.max_output


# Shrinking a failure takes minutes and the audit already says what is wrong.
_PHASES = (Phase.explicit, Phase.generate)

TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=40, phases=_PHASES)


@pytest.mark.slow
class TestLongSearch(TestSchedulerMachine):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=2000, stateful_step_count=80, phases=_PHASES)
