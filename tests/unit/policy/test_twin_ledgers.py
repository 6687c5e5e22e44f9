"""One machine drives the script in a real Redis and its twin in memory, through every order of calls and faults.

After each step both have answered alike, to the last bit, and no level is negative. The clock is a key in Redis, so
that time passes when the test says so, forwards and backwards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from importlib import resources
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace_policy import decide, redis_link
from headrace_policy.decide import Declared, Prices
from headrace_policy.ledger import Admission, Charge, Closing, Held, Terms
from headrace_policy.limits import Limit
from headrace_policy.memory_ledger import MemoryLedger
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from tests.unit.policy.redis_process import RedisProcess

T = TypeVar("T")
LEASE_MS = 30_000
START_MS = 1_800_000_000_000
CLOCK = "local now = tonumber(redis.call('GET', 'clock'))"
REAL_CLOCK = """local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)"""
NAMES = ("rpm", "tpm", "input_tpm", "output_tpm", "concurrency", "tokens_per_day", "spend_per_day")
SCALE = {"concurrency": 0.01, "spend_per_day": 1e-5, "rpm": 0.05}
PRICES = Prices(3.7, 0.9, 11.3)
ids = st.sampled_from([f"r{i}" for i in range(8)])


def script() -> str:
    source = resources.files("headrace_policy").joinpath("ledger.lua").read_text("utf-8")
    assert source.count(REAL_CLOCK) == 1
    return source.replace(REAL_CLOCK, CLOCK)


class Twins(RuleBasedStateMachine):
    process: RedisProcess
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.client = redis_link.connect(self.process.url)
        self.store = self.process.client()
        self.redis = RedisLedger(RedisLink(self.client, decide_s=30.0, patient_s=30.0, script=script()), LEASE_MS)
        self.memory = MemoryLedger(LEASE_MS)
        self.limits: list[Limit] = []
        self.known: dict[str, tuple[Declared, Terms]] = {}
        self.now = START_MS

    def wait(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(asyncio.ensure_future(work, loop=self.loop))

    def tell_time(self) -> None:
        self.store.set("clock", self.now)

    @initialize(capacities=st.lists(st.integers(0, 400), min_size=len(NAMES), max_size=len(NAMES)))
    def begin(self, capacities: list[int]) -> None:
        self.store.flushall()
        self.tell_time()
        self.change_limits(capacities)

    @rule(capacities=st.lists(st.integers(0, 400), min_size=len(NAMES), max_size=len(NAMES)))
    def change_limits(self, capacities: list[int]) -> None:
        self.limits = [
            Limit(name, round(capacity * SCALE.get(name, 1.0), 9), "tenant")
            for name, capacity in zip(NAMES, capacities, strict=True)
            if capacity
        ]

    @rule(
        name=ids,
        bounds=st.builds(Declared, st.integers(0, 90), st.integers(1, 60), st.integers(1, 3)),
        retry_of=st.one_of(st.just(""), ids),
    )
    def admit(self, name: str, bounds: Declared, retry_of: str) -> None:
        terms = self.terms(bounds)
        asked = Admission(name, self.limits, terms, name.encode(), retry_of)
        got, expected = self.wait(self.redis.admit("acme", asked)), self.memory.admit(asked, self.now)
        assert got == expected
        if got.state == "admitted":
            self.known[name] = (bounds, terms)
            assert all(level <= limit.capacity + 1e-6 for level, limit in zip(got.levels, self.limits, strict=True))

    @rule(names=st.lists(ids, unique=True, max_size=4))
    def renew(self, names: list[str]) -> None:
        held = [Held(name, self.carried(name), name.encode()) for name in names]
        assert self.wait(self.redis.renew("acme", held)) == self.memory.renew(held, self.now)

    @rule(
        name=ids,
        kind=st.sampled_from(["released", "completed", "incomplete", "failed", "cancelled"]),
        source=st.sampled_from(["owner", "orphan", "sweep"]),
        counts=st.tuples(*[st.integers(0, 60)] * 3),
    )
    def settle(self, name: str, kind: str, source: str, counts: tuple[int, int, int]) -> None:
        closing = self.closing(name, kind, source, decide.billed(kind, *counts))
        self.close_both(closing)

    @rule()
    def sweep(self) -> None:
        due = list(self.wait(self.redis.tour("acme", 100)).expired)
        assert sorted(due) == sorted(self.memory.due(self.now))
        for message in due:
            billed = decide.billed("failed", 0, 0, 0)
            self.close_both(self.closing(message.decode(), "failed", "sweep", billed, only_expired=True))

    @rule(step_ms=st.one_of(st.integers(0, 2000), st.integers(2000, 120_000), st.integers(-5000, 0)))
    def pass_time(self, step_ms: int) -> None:
        self.now += step_ms
        self.tell_time()

    @rule()
    def lose_redis(self) -> None:
        self.store.flushall()
        self.tell_time()
        self.memory.forget()

    @rule()
    def restart_redis(self) -> None:
        self.store.script_flush()

    @invariant()
    def levels_agree(self) -> None:
        if not self.limits:
            return
        got = self.wait(self.redis.levels("acme", self.limits))
        assert got == [self.memory.level(limit, self.now) for limit in self.limits]
        assert min(got) >= 0

    @precondition(lambda self: self.known)
    @rule()
    def no_key_is_for_ever(self) -> None:
        assert all(self.store.pttl(key) > 0 for key in self.store.scan_iter() if key != b"clock")

    def terms(self, bounds: Declared) -> Terms:
        charges = (
            Charge(limit.name, limit.scope, limit.subject, decide.reserved(limit.name, bounds, PRICES), limit.rate)
            for limit in self.limits
        )
        return Terms(tuple(charges), PRICES)

    def carried(self, name: str) -> Terms:
        return self.known[name][1] if name in self.known else self.terms(Declared(10, 10, 1))

    def closing(self, name: str, kind: str, source: str, billed: decide.Billed, **fields: Any) -> Closing:
        return Closing(name, source, kind, billed, self.carried(name), self.now - 1500, b"row", **fields)

    def close_both(self, closing: Closing) -> None:
        got, expected = self.wait(self.redis.settle("acme", closing)), self.memory.settle(closing, self.now)
        assert (got.state, got.now_ms, got.cost) == (expected.state, expected.now_ms, expected.cost)

    def teardown(self) -> None:
        self.wait(self.client.aclose())
        self.store.close()


@pytest.fixture
def own_loop() -> Iterator[Callable[[], asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    yield lambda: loop
    loop.close()


def test_the_twins_never_disagree(redis_process: RedisProcess, own_loop: Callable[[], Any]) -> None:
    machine = type("Bound", (Twins,), {"process": redis_process, "loop": own_loop()})
    searching = settings().max_examples > 100
    run_state_machine_as_test(machine, settings=settings(max_examples=400 if searching else 30, stateful_step_count=40))


def test_a_clock_that_is_set_back_over_the_hour_forgets_no_settlement(
    redis_process: RedisProcess, own_loop: Callable[[], Any]
) -> None:
    """The outcome stands in the hour of the settlement, which is then an hour that has not come yet."""
    assert START_MS % 3_600_000 == 0
    twins = type("Bound", (Twins,), {"process": redis_process, "loop": own_loop()})()
    twins.begin(capacities=[0] * len(NAMES))
    twins.settle(name="r0", kind="released", source="owner", counts=(0, 0, 0))
    twins.pass_time(step_ms=-1)
    twins.renew(names=["r0"])
    twins.settle(name="r0", kind="released", source="owner", counts=(0, 0, 0))
    twins.teardown()
