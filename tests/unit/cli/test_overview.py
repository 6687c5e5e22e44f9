"""The figures of `headrace top`, from two looks at metrics as processes show them."""

import pytest

from headrace_cli.overview import Look, Pair, overview, pairs, read

GATEWAY = """
# TYPE responses counter
responses_total{{model="m",outcome="completed"}} {completed}
responses_total{{model="m",outcome="failed"}} 2.0
# TYPE tokens counter
tokens_total{{kind="output",model="m"}} {tokens}
tokens_total{{kind="prompt",model="m"}} 9999.0
# TYPE responses_open gauge
responses_open 3.0
# TYPE slo_attainment_ratio gauge
slo_attainment_ratio{{slo_class="interactive",budget="ttft",window="5m"}} {ttft}
# TYPE slo_burn_ratio gauge
slo_burn_ratio{{slo_class="interactive",window="5m"}} 2.5
slo_burn_ratio{{slo_class="interactive",window="1h"}} 0.5
# TYPE goodput_responses_per_second gauge
goodput_responses_per_second{{slo_class="interactive",window="5m"}} 1.5
"""
WORKER = """
# TYPE worker_pages gauge
worker_pages{{state="free"}} 50.0
worker_pages{{state="held"}} 30.0
worker_pages{{state="cached"}} 20.0
# TYPE worker_promised_pages gauge
worker_promised_pages 40.0
# TYPE worker_running gauge
worker_running 4.0
# TYPE worker_step_seconds histogram
worker_step_seconds_count{{part="forward"}} {steps}
worker_step_seconds_sum{{part="forward"}} {seconds}
"""
CONTROL = """
# TYPE replicas gauge
replicas{state="ready"} 2.0
replicas{state="loading"} 1.0
# TYPE fleet_version gauge
fleet_version 7.0
"""


def test_rates_are_of_all_gateways_and_shares_of_each_worker() -> None:
    before = [
        read("gateway", "a", 10.0, GATEWAY.format(completed=100, tokens=1000, ttft=0.9)),
        read("gateway", "b", 10.0, GATEWAY.format(completed=0, tokens=0, ttft=0.8)),
        read("worker", "w0", 10.0, WORKER.format(steps=10, seconds=1.0)),
    ]
    now = [
        read("gateway", "a", 12.0, GATEWAY.format(completed=110, tokens=1500, ttft=0.9)),
        read("gateway", "b", 12.0, GATEWAY.format(completed=2, tokens=20, ttft=0.8)),
        read("worker", "w0", 12.0, WORKER.format(steps=20, seconds=1.5)),
        read("controlplane", "c", 12.0, CONTROL),
    ]
    seen = overview(pairs(now, before))
    assert (seen.version, seen.num_ready, seen.num_replicas, seen.num_open) == (7, 2, 3, 6)
    assert (seen.responses_per_s, seen.tokens_per_s) == (6.0, 260.0)
    (engine,) = seen.engines
    assert (engine.held, engine.cached, engine.promised, engine.num_running) == (0.3, 0.2, 0.4, 4)
    assert engine.step_s == pytest.approx(0.05)
    (line,) = seen.classes
    assert (line.name, line.ttft, line.inter_token, line.goodput_per_s) == ("interactive", 0.8, None, 3.0)
    assert (line.burn, line.burn_hour) == (2.5, 0.5)


def test_a_process_that_began_anew_has_no_negative_rate() -> None:
    old = read("gateway", "a", 10.0, GATEWAY.format(completed=100, tokens=1000, ttft=1))
    new = read("gateway", "a", 12.0, GATEWAY.format(completed=1, tokens=5, ttft=1))
    assert Pair(new, old).rate("responses_total") == 0.0
    assert Pair(new, new).rate("responses_total") == 0.0


def test_nothing_at_all_can_be_shown() -> None:
    seen = overview([])
    assert (seen.num_ready, seen.engines, seen.classes) == (0, [], [])


def test_one_that_does_not_answer_is_named_and_its_figures_are_nobodys() -> None:
    def look(at_s: float) -> Look:
        return read("gateway", "a", at_s, GATEWAY.format(completed=100, tokens=1000, ttft=1))

    silent = Look("gateway", "a", 12.0, {}, is_silent=True)
    worker = Look("worker", "w0", 12.0, {}, is_silent=True)
    seen = overview(pairs([silent, worker], [look(10.0)]))
    assert (seen.silent, seen.num_open, seen.engines) == (["gateway a", "worker w0"], 0, [])
    back = overview(pairs([look(14.0)], [silent]))
    assert (back.silent, back.num_open, back.responses_per_s) == ([], 3, 0.0), "what it counted is not of these seconds"
