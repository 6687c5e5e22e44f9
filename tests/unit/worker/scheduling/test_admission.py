"""Admission by future memory: the formula, the reference arithmetic, and what it rules out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.scheduling.group import promised_pages
from tests.unit.worker.scheduling.fakes import Driver, make_limits

GIB = 2**30
# 80 layers, 8 KV heads, head width 128, 2 bytes, K and V.
KV_BYTES_PER_TOKEN = 80 * 8 * 128 * 2 * 2


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 8), st.sampled_from([16, 32, 256]))
def test_the_promise_is_the_pages_of_n_tables_that_share_full_prompt_pages(
    num_prompt: int, max_output: int, n: int, page_tokens: int
) -> None:
    positions = range(0, num_prompt + max_output, page_tokens)
    shared = [start for start in positions if start + page_tokens <= num_prompt]
    assert promised_pages(num_prompt, max_output, n, page_tokens) == len(shared) + n * (len(positions) - len(shared))


@pytest.mark.parametrize(
    ("num_devices", "weight_bytes", "num_full"),
    [(1, 70 * 10**9, 4), (1, 35 * 10**9, 17), (2, 140 * 10**9, 8)],
    ids=["fp8", "int4", "fp16 on two"],
)
def test_full_8k_reservations_of_a_70b_model(num_devices: int, weight_bytes: int, num_full: int) -> None:
    """DESIGN section 4: on 80 GiB devices with 4 GiB reserved each; one more waits, though each holds 100 tokens."""
    assert KV_BYTES_PER_TOKEN == 327_680
    pool_bytes = num_devices * (80 - 4) * GIB - weight_bytes
    num_pages = pool_bytes // (KV_BYTES_PER_TOKEN * 16)
    driver = Driver(make_limits(num_pages=num_pages, max_sequence_tokens=8192, max_running=32))
    outcomes = [driver.submit([index] * 50, 8192 - 50) for index in range(num_full)]
    while len(outcomes[-1].tokens[0]) < 50:
        driver.step()
    assert all(len(outcome.tokens[0]) >= 50 for outcome in outcomes)
    assert driver.scheduler.pool.num_held < num_full * 100
    one_more = driver.submit([num_full] * 50, 8192 - 50, queue_deadline_s=0.1)
    for _ in range(12):
        driver.step()
        driver.check()
        assert one_more.accepted is None
    assert one_more.refused is not None
    assert one_more.refused.reason == "queue_deadline"


def test_what_can_never_fit_is_refused_at_once_with_both_numbers() -> None:
    """B93: 40 pages; 50 are refused, 40 run, and a small one behind them is done within a second."""
    driver = Driver(make_limits(num_pages=40, max_sequence_tokens=2048))
    never = driver.submit(790, 10)
    assert never.refused is not None
    assert (never.refused.reason, never.refused.numbers) == ("prompt_exceeds_capacity", (50, 40))
    assert "50" in never.refused.detail
    assert "40" in never.refused.detail
    whole = driver.submit(630, 10)
    small = driver.submit(16, 4)
    driver.run()
    assert whole.finished[0].reason == small.finished[0].reason == "length"
    assert driver.now < 1.0


def test_never_fits_is_judged_without_the_cache() -> None:
    """A prompt that is wholly cached still may not need more than the pool."""
    driver = Driver(make_limits(num_pages=10))
    driver.submit(144, 1)
    driver.run()
    assert driver.submit(tuple(at * 13 % 256 for at in range(144)), 32).refused is not None


def test_a_request_holds_its_whole_future_or_nothing() -> None:
    """B94: 128 pages; A needs 100 (32 cached), B needs 75 (46 cached). B waits without a page until A has ended."""
    driver = Driver(make_limits(num_pages=128))
    a_prompt, b_prompt = [1] * 512, [2] * 736
    driver.submit(a_prompt, 1)
    driver.submit(b_prompt, 1)
    driver.run()
    a = driver.submit(a_prompt, 1088)
    b = driver.submit(b_prompt, 464)
    driver.step()
    assert a.accepted is not None
    assert (a.accepted.promised_pages, a.accepted.cached_tokens) == (100, 511)
    while not a.is_over:
        assert b.accepted is None
        assert driver.scheduler.ledger.num_promised == 100
        assert driver.scheduler.pool.num_held <= 100
        driver.step()
        driver.check()
    driver.run()
    assert b.finished[0].kind == "incomplete"


def test_shared_pages_are_promised_but_not_owed_twice() -> None:
    """Twelve pages: a prompt of eight pages is shared by two requests that own two more each."""
    driver = Driver(make_limits(num_pages=12))
    prompt = [3] * 128
    first = driver.submit(prompt, 32)
    driver.step()
    second = driver.submit(prompt, 32)
    driver.step()
    driver.check()
    assert first.accepted is not None
    assert second.accepted is not None
    assert driver.scheduler.ledger.num_promised == 20
    driver.run()


def test_an_early_end_frees_what_was_never_used() -> None:
    driver = Driver(make_limits(num_pages=16), model=lambda context, choice: (257,))
    driver.submit(16, 240)
    second = driver.submit(16, 240)
    driver.step()
    driver.step()
    assert second.accepted is not None
    driver.run()
    assert driver.scheduler.ledger.num_used_ended == 2
    assert driver.scheduler.ledger.num_promised_ended == 32


def test_pinning_hits_takes_them_from_what_others_were_promised() -> None:
    """12 pages: 4 cached, A holds 1 and is owed 5. B hits the 4 and needs 3 more: 3 > 11 - 4 - 5, so it waits."""
    driver = Driver(make_limits(num_pages=12))
    cached_prompt = [1] * 64
    driver.submit(cached_prompt, 1)
    driver.run()
    a = driver.submit(16, 80)
    driver.step()
    b = driver.submit(cached_prompt, 48)
    driver.step()
    driver.check()
    assert a.accepted is not None
    assert b.accepted is None
    driver.run()
    assert b.accepted_s >= 0.8


def test_a_prompt_that_just_fits_by_its_hits_enters() -> None:
    """The other side of it: pinned pages that somebody holds anyway cost nothing."""
    driver = Driver(make_limits(num_pages=12))
    prompt = [1] * 64
    driver.submit(prompt, 32)
    driver.step()
    sharing, alone = driver.submit(prompt, 96), driver.submit([2] * 64, 96)
    driver.step()
    driver.check()
    assert sharing.accepted is not None
    assert alone.accepted is None
    driver.run()
