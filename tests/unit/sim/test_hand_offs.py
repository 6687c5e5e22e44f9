"""Split pools on the virtual clock: every prompt that travels is accounted for, whatever dies, and takes its time."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_sim.assembly import Options
from headrace_sim.fleet import SimFleet, parse_fleet
from headrace_sim.report import to_json, to_table
from headrace_sim.simulation import Outcome, Simulation
from headrace_worker.scheduling.events import PagesWanted
from headrace_workload.arrival import Arrival, Segment
from headrace_workload.generate import generate
from headrace_workload.spec import read_workload
from tests.unit.sim.fleets import POOL, requests

LINK = {"kv_gb_per_s": 40, "kv_latency_ms": 2}
KV_BYTES = 131_072
"""Of one token of the 8 B model at two bytes."""

faults = st.fixed_dictionaries(
    {"at_s": st.floats(0, 5), "kind": st.sampled_from(["kill", "drain"]), "pool": st.sampled_from(["p", "d"])}
)


def split_fleet(
    struck: list[dict[str, Any]] | None = None, link: dict[str, float] | None = None, **changes: Any
) -> SimFleet:
    """Two replicas that prefill and two that decode."""
    pools = {
        name: {**POOL, "min": 2, "role": role, "start_up_s": 2.0, **changes}
        for name, role in (("p", "prefill"), ("d", "decode"))
    }
    value = {
        "models": {"m": {"source": "hf:a/b@main"}},
        "pools": pools,
        "classes": {"chat": {"ttft_ms": 60_000, "inter_token_ms": 100, "max_queue_ms": 60_000, "default": True}},
        "tenants": {"dev": {}},
        "simulation": {
            "models": {"m": {"shape": "llama-3.1-8b"}},
            "pools": {name: {**LINK, **(link or {})} for name in pools},
            "faults": struck or [],
        },
    }
    return parse_fleet(yaml.safe_dump(value))


def run(fleet: SimFleet, rps: float = 8.0, for_s: float = 3.0, seed: int = 1, fast_forward: bool = True) -> Outcome:
    load = requests(rps, for_s, prompt={"p50": 1500, "p95": 6000, "max": 8000})
    options = Options(seed, fast_forward, shares_prefixes=False)
    return Simulation(fleet, options).run(generate(read_workload(load), seed))


def streams_and(num_prompt: int, num_long: int = 2, num_streams: int = 2) -> list[Arrival]:
    """Prompts are handed over only where streams run that they would hold up."""
    arrivals = [Arrival(i, 0.05 * i, "m", 30, 400, 400, (Segment(i, 30),)) for i in range(num_streams)]
    for number in range(num_streams, num_streams + num_long):
        arrivals.append(Arrival(number, 1.0, "m", num_prompt, 50, 50, (Segment(number, num_prompt),)))
    return arrivals


@settings(max_examples=5, deadline=None)
@given(st.lists(faults, max_size=3), st.booleans(), st.integers(0, 100))
def test_everything_adds_up_whatever_dies(struck: list[dict[str, Any]], fast_forward: bool, seed: int) -> None:
    """`run` raises if requests, tokens, hand-offs or pages do not balance; here that nothing is left in transfer."""
    outcome = run(split_fleet(struck, num_pages=600), seed=seed, fast_forward=fast_forward)
    hand_offs = outcome.hand_offs
    assert sum(outcome.books.endings.values()) == outcome.books.num_arrived
    assert hand_offs.num_begun == hand_offs.num_acknowledged + hand_offs.num_aborted
    for entry in outcome.depot.entries.values():
        if not entry.replica.is_gone:
            assert entry.replica.scheduler.pool.num_quarantined == 0


def test_fast_forward_agrees_with_every_step_planned() -> None:
    exact, fast = (run(split_fleet(), fast_forward=each) for each in (False, True))
    assert fast.hand_offs.num_acknowledged == exact.hand_offs.num_acknowledged > 0
    assert fast.hand_offs.num_bytes == exact.hand_offs.num_bytes
    for name in ("ttft_s", "inter_token_s"):
        mine, theirs = (list(getattr(each.books.columns["m", "chat"], name)) for each in (exact, fast))
        assert theirs == pytest.approx(mine, rel=0.02)


def test_prompts_travel_one_after_the_other_over_the_link_of_who_decodes() -> None:
    """4,096 tokens take 13 ms of link: the slower the link, the later the first token, by what the bytes take."""
    first = {}
    for gb_per_s in (40.0, 10.0):
        fleet = split_fleet(link={"kv_gb_per_s": gb_per_s}, min=1)
        simulation = Simulation(fleet, Options(shares_prefixes=False))
        outcome = simulation.run(streams_and(4097, num_long=1))
        assert outcome.hand_offs.num_acknowledged == 1
        assert outcome.hand_offs.num_bytes == 4096 * KV_BYTES
        first[gb_per_s] = max(outcome.books.columns["m", "chat"].ttft_s)
    # The chunks before the last travel while it is computed: only what is left then is waited for.
    last_chunk_s = 1024 * KV_BYTES / 10e9
    assert first[10.0] - first[40.0] > 0.9 * (last_chunk_s - 1024 * KV_BYTES / 40e9)
    assert first[10.0] - first[40.0] < 4096 * KV_BYTES / 10e9


def test_the_whole_future_is_reserved_where_it_decodes_and_source_pages_are_held_until_they_came_over() -> None:
    fleet = split_fleet(min=1)
    simulation = Simulation(fleet, Options(shares_prefixes=False))
    seen: list[tuple[int, int]] = []
    wanted = simulation.hand_offs.wanted

    def note(decode: Any, job: Any, event: PagesWanted) -> None:
        seen.append((decode.scheduler.ledger.num_promised, len(event.pages)))
        wanted(decode, job, event)

    simulation.hand_offs.wanted = note  # type: ignore[method-assign]
    arrive = simulation.hand_offs._arrive
    held: list[int] = []

    def arriving(handle: int) -> None:
        held.append(simulation.hand_offs._open[handle].prefill.scheduler.pool.num_quarantined)
        arrive(handle)

    simulation.hand_offs._arrive = arriving  # type: ignore[method-assign]
    simulation.run(streams_and(2000, num_long=1))
    # 64 tokens a page: two streams of 30 + 400, and 2,000 + 50.
    assert seen == [(7 + 7 + 33, 32)]
    assert held == [32]


def test_a_lost_prefill_replica_costs_its_prompts_one_more_attempt() -> None:
    strike = {"at_s": 1.02, "kind": "kill", "pool": "p", "count": 1}
    simulation = Simulation(split_fleet([strike]), Options(shares_prefixes=False))
    outcome = simulation.run(streams_and(8000))
    assert outcome.hand_offs.num_aborted > 0
    assert outcome.books.endings == {"incomplete": 4}


def test_streams_are_not_held_up_by_prompts_that_others_compute() -> None:
    """The worst gap of the streams that run, against the same four cards with both roles."""
    worst = {}
    for role in ("split", "both"):
        fleet = split_fleet() if role == "split" else split_fleet(role="both")
        outcome = Simulation(fleet, Options(shares_prefixes=False)).run(streams_and(8000, num_streams=8))
        worst[role] = max(outcome.books.columns["m", "chat"].worst_gap_s)
    assert worst["split"] < 0.6 * worst["both"]


def test_the_report_tells_what_came_over() -> None:
    summary = to_json(run(split_fleet()))
    assert summary["hand_offs"]["acknowledged"] == summary["hand_offs"]["begun"] > 0
    assert "prompts came over" in to_table(summary)
