"""Figures of known outcomes."""

import pytest

from headrace_bench.load import Run
from headrace_bench.outcome import Outcome
from headrace_bench.page import in_flight, page
from headrace_bench.summary import Slo, percentile, summarize


def outcome(number: int, ttft_s: float, gap_s: float, num_output: int = 3, error: str = "") -> Outcome:
    sent_s = float(number)
    texts = [sent_s + ttft_s + gap_s * index for index in range(num_output)]
    return Outcome(
        number, "m", sent_s, sent_s, texts[-1], num_prompt=10, num_output=num_output, error=error, texts_s=texts
    )


def test_percentiles_lie_between_the_two_nearest() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [percentile(values, share) for share in (0, 50, 90, 100)] == pytest.approx([1.0, 2.5, 3.7, 4.0])


def test_the_figures_of_a_run() -> None:
    run = Run([outcome(0, 0.1, 0.02), outcome(1, 0.3, 0.04), outcome(2, 0.2, 0.02, error="HTTP 503")], elapsed_s=4.0)
    found = summarize(run, Slo(ttft_s=0.2))
    assert (found["num_requests"], found["num_completed"], found["num_failed"]) == (3, 2, 1)
    assert found["ttft_s"]["p50"] == pytest.approx(0.2)
    assert found["itl_s"]["mean"] == pytest.approx(0.03)
    assert found["tpot_s"]["max"] == pytest.approx(0.04)
    assert found["offered_rps"] == pytest.approx(1.0)
    assert found["output_tokens_per_s"] == pytest.approx(6 / 4)
    assert (found["goodput_rps"], found["attainment"]) == (pytest.approx(0.25), pytest.approx(1 / 3))
    assert found["errors"] == {"HTTP 503": 1}


def test_one_token_has_no_time_per_output_token() -> None:
    one = outcome(0, 0.1, 0.0, num_output=1)
    assert one.tpot_s is None and one.ttft_s == pytest.approx(0.1)
    assert Slo(tpot_s=0.001).met_by(one)


def test_requests_in_flight_rise_and_fall() -> None:
    assert in_flight([outcome(0, 0.1, 1.0), outcome(1, 0.1, 0.0)]) == [
        (0.0, 1.0),
        (1.0, 2.0),
        (pytest.approx(1.1), 1.0),
        (pytest.approx(2.1), 0.0),
    ]


def test_a_report_of_nothing_and_one_of_something_can_be_read() -> None:
    for run in (Run(), Run([outcome(0, 0.1, 0.02), outcome(1, 0.1, 0.02, error="<b>")], 2.0)):
        text = page(run, summarize(run, Slo()), {"url": "http://x/<script>"})
        assert text.startswith("<!doctype html>") and "<script>" not in text and "<b>" not in text
