"""What is learnt from transfers: their rate and latency, from sizes that differ."""

import pytest

from headrace_worker.transfer.rate import TransferRate


def test_a_line_is_found() -> None:
    rate = TransferRate()
    for size in (1e6, 5e6, 20e6, 3e6):
        rate.add(int(size), 0.02 + size / 4e8)
    assert rate.bytes_per_s == pytest.approx(4e8, rel=1e-6)
    assert rate.latency_s == pytest.approx(0.02, rel=1e-6)
    assert rate.seconds(8_000_000) == pytest.approx(0.04, rel=1e-6)


def test_equal_sizes_change_the_rate_alone() -> None:
    rate = TransferRate(latency_s=0.01)
    for _ in range(3):
        rate.add(10_000_000, 0.11)
    assert (rate.latency_s, rate.num_samples) == (0.01, 3)
    assert rate.bytes_per_s == pytest.approx(1e8)


def test_faster_than_the_guessed_latency_is_no_negative_time() -> None:
    rate = TransferRate(latency_s=0.5)
    rate.add(1_000_000, 0.001)
    assert rate.latency_s == 0.0
    assert rate.bytes_per_s == pytest.approx(1e9)


def test_nothing_is_learnt_from_nothing() -> None:
    rate = TransferRate()
    rate.add(0, 1.0)
    rate.add(5, 0.0)
    assert rate.num_samples == 0


def test_where_size_does_not_show_all_is_latency() -> None:
    rate = TransferRate()
    for size, seconds in ((20_000, 0.0031), (60_000, 0.0029), (200_000, 0.003), (100_000, 0.003)):
        rate.add(size, seconds)
    rate.add(250_000, 0.0029)
    assert rate.latency_s == pytest.approx(0.00298, rel=0.01)
    assert rate.seconds(100_000) == pytest.approx(0.003, rel=0.05)


def test_a_few_that_had_to_wait_do_not_count() -> None:
    rate = TransferRate()
    for number in range(1, 21):
        rate.add(number * 1_000_000, 0.02 + number / 400 + (0.5 if number in (4, 15) else 0.0))
    assert rate.bytes_per_s == pytest.approx(4e8, rel=0.1)
    assert rate.latency_s == pytest.approx(0.02, rel=0.1)
