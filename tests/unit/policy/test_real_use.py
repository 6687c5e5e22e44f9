"""However reservations come and settle, what was really used in any span of time is at most capacity + rate x span."""

from hypothesis import given
from hypothesis import strategies as st

from headrace_policy.decide import Billed, Declared, reserved
from headrace_policy.ledger import Admission, Charge, Closing, Terms
from headrace_policy.limits import Limit
from headrace_policy.memory_ledger import MemoryLedger

LIMIT = Limit("tpm", 100, "tenant")
steps = st.tuples(st.integers(0, 40_000), st.integers(1, 60), st.integers(0, 60), st.integers(0, 3))


@given(st.lists(steps, min_size=2, max_size=30))
def test_real_use_never_exceeds_the_limit(plan: list[tuple[int, int, int, int]]) -> None:
    ledger, now = MemoryLedger(10**9), 0
    open_ones: list[tuple[int, int, int]] = []
    used: list[tuple[int, int]] = []
    for i, (wait_ms, declared, share, num_settled) in enumerate(plan):
        now += wait_ms
        for number, bound, percent in open_ones[:num_settled]:
            output = bound * percent // 60
            closing = Closing(str(number), "owner", "completed", Billed(1, 0, 0, output), Terms(), 0, b"")
            ledger.settle(closing, now)
            used[number] = (used[number][0], output)
        del open_ones[:num_settled]
        units = reserved("tpm", Declared(0, declared, 1), Terms().prices)
        terms = Terms((Charge("tpm", "tenant", "", units, LIMIT.rate),))
        admitted = ledger.admit(Admission(str(i), [LIMIT], terms, b""), now).state == "admitted"
        used.append((now, declared if admitted else 0))
        if admitted:
            open_ones.append((i, declared, share))
    for first in range(len(used)):
        for last in range(first, len(used)):
            span_ms = used[last][0] - used[first][0]
            total = sum(tokens for _, tokens in used[first : last + 1])
            assert total <= LIMIT.capacity + LIMIT.rate * span_ms + 1e-6
