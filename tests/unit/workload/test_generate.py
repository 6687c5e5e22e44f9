"""Declarative workloads: rates, lengths, sessions and prefixes come out as they were declared."""

from itertools import pairwise
from random import Random

import pytest

from headrace_workload.arrivals import Phase, arrival_times, rate_at
from headrace_workload.errors import WorkloadError
from headrace_workload.generate import generate
from headrace_workload.lengths import mean, read_lengths
from headrace_workload.presets import PRESETS
from headrace_workload.prompts import TokenTable, text_of
from headrace_workload.spec import read_workload

KIND = {"model": "m", "prompt": {"p50": 640, "p95": 4096}, "output": 10, "max_output": 10}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_comes_in_order_and_its_segments_sum_to_its_prompts(name: str) -> None:
    workload = read_workload(PRESETS[name])
    arrivals = [arrival for arrival in generate(workload, 7) if arrival.at_s < 60]
    assert [each.number for each in arrivals] == list(range(len(arrivals)))
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(arrivals))
    assert all(sum(part.num_tokens for part in each.segments) == each.num_prompt for each in arrivals)
    assert all(1 <= each.num_output <= each.max_output for each in arrivals)


def test_chat_burst_has_the_rates_and_lengths_of_the_design() -> None:
    arrivals = list(generate(read_workload(PRESETS["chat-burst"]), 1))
    before = sum(each.at_s < 120 for each in arrivals) / 120
    burst = sum(130 <= each.at_s < 300 for each in arrivals) / 170
    prompts = sorted(each.num_prompt for each in arrivals)
    assert before == pytest.approx(120, rel=0.05)
    assert burst == pytest.approx(360, rel=0.05)
    assert prompts[len(prompts) // 2] == pytest.approx(640, rel=0.05)
    assert prompts[len(prompts) * 95 // 100] == pytest.approx(4096, rel=0.07)
    assert {each.model for each in arrivals} == {"fast", "deep"}
    assert {each.max_output for each in arrivals} == {512}


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    workload = read_workload({"phases": [{"for_s": 20, "rps": 10}], "mix": [KIND]})
    assert list(generate(workload, 3)) == list(generate(workload, 3))
    assert list(generate(workload, 3)) != list(generate(workload, 4))


def test_a_ramp_has_the_rate_that_it_runs_through() -> None:
    phases = (Phase(100, 0, 20),)
    times = list(arrival_times(phases, 1.0, Random(1)))
    assert len(times) == pytest.approx(1000, rel=0.1)
    assert sum(each < 50 for each in times) == pytest.approx(250, rel=0.2)
    assert rate_at(phases, 50) == pytest.approx(10)
    assert rate_at(phases, 100) == 0


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_gaps_have_the_declared_variation(cv: float) -> None:
    times = list(arrival_times((Phase(4000, 10, 10),), cv, Random(2)))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    average = sum(gaps) / len(gaps)
    deviation = (sum((gap - average) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert average == pytest.approx(0.1, rel=0.07)
    assert deviation / average == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_each_turn_of_a_session_begins_with_all_before_it() -> None:
    kind = {**KIND, "sessions": {"turns": 4, "think_s": 1}, "prefix": {"count": 3, "tokens": 100}}
    arrivals = list(generate(read_workload({"phases": [{"for_s": 100, "rps": 10}], "mix": [kind]}), 1))
    assert len(arrivals) == pytest.approx(1000, rel=0.2)
    by_session: dict[str, list[int]] = {}
    for each in arrivals:
        by_session.setdefault(each.session, []).append(each.number)
    longest = max(by_session.values(), key=len)
    assert len(longest) > 4
    for earlier, later in pairwise(longest):
        count = len(arrivals[earlier].segments)
        assert arrivals[later].segments[:count] == arrivals[earlier].segments
        assert arrivals[later].turn == arrivals[earlier].turn + 1
    assert len({each.segments[0].seed for each in arrivals}) == 3


def test_equal_segments_are_equal_tokens_and_others_differ_at_once() -> None:
    arrivals = list(generate(read_workload({"phases": [{"for_s": 300, "rps": 10}], "mix": [KIND]}), 1))
    table = TokenTable(32_000)
    heads = {tuple(table.ids(each.segments)[:16]) for each in arrivals if each.num_prompt >= 16}
    assert len(heads) == sum(each.num_prompt >= 16 for each in arrivals)
    assert table.ids(arrivals[0].segments) == TokenTable(32_000).ids(arrivals[0].segments)
    assert len(table.ids(arrivals[0].segments)) == arrivals[0].num_prompt
    assert len(text_of(arrivals[0].segments).split()) == arrivals[0].num_prompt


@pytest.mark.parametrize(
    ("value", "expected_mean"),
    [(7, 7), ({"uniform": [10, 20]}, 15), ({"quantiles": {0: 100, 100: 100}}, 100)],
)
def test_the_mean_of_lengths(value: object, expected_mean: float) -> None:
    assert mean(read_lengths(value, "x")) == pytest.approx(expected_mean, rel=0.01)


def test_a_tail_reaches_its_quantiles() -> None:
    lengths = read_lengths({"quantiles": {0: 1, 50: 601, 95: 2404, 99: 5452, 100: 30712}}, "x")
    assert [lengths.quantile(u) for u in (0.5, 0.95, 0.99, 0.999999)] == [601, 2404, 5452, 30707]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"phases": []}, "phases"),
        ({"phases": [{"for_s": 0, "rps": 1}]}, "phases[0].for_s"),
        ({"phases": [{"for_s": 1}]}, "phases[0].rps"),
        ({"mix": [{**KIND, "prompt": {"p50": 10, "p95": 5}}]}, "mix[0].prompt"),
        ({"mix": [{**KIND, "output": 0}]}, "mix[0].output"),
        ({"mix": [{**KIND, "output": True}]}, "mix[0].output"),
        ({"mix": [{**KIND, "sessions": {"turns": 0.5, "think_s": 1}}]}, "mix[0].sessions.turns"),
        ({"mix": [{**KIND, "sessions": {"turns": 10**9, "think_s": 1}}]}, "mix[0].sessions.turns"),
        ({"mix": [{**KIND, "prefix": {"count": 10**9, "tokens": 1}}]}, "mix[0].prefix.count"),
        ({"mix": [{**KIND, "prompt": {"quantiles": {"a": 1, 100: 2}}}]}, "mix[0].prompt.quantiles"),
        ({"mix": [{**KIND, "prompt": {"quantiles": {0: 1, float("nan"): 1, 100: 2}}}]}, "mix[0].prompt.quantiles"),
        ({"mix": [{**KIND, "colour": 1}]}, "mix[0].colour"),
        ({"mix": [{**KIND, "weight": 0}]}, "mix"),
        ({"cv": float("nan")}, "cv"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], where: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_workload({"phases": [{"for_s": 1, "rps": 1}], "mix": [KIND], **change})
    assert caught.value.where == where
