"""The fleets that experiments run on: one pool of a built-in model, changed where an experiment asks. Plain values."""

from typing import Any

import yaml

from headrace_sim.assembly import Options
from headrace_sim.closed_loop import ClosedLoop
from headrace_sim.fleet import SimFleet, parse_fleet
from headrace_sim.report import to_json
from headrace_sim.scaling import Forecaster
from headrace_sim.simulation import Outcome, Simulation
from headrace_workload.generate import generate
from headrace_workload.lengths import Lengths
from headrace_workload.spec import Workload, read_workload

POOL_8B: dict[str, Any] = {
    "model": "m",
    "device": "cuda",
    "card": "h100-80gib",
    "precision": "bfloat16",
    "price_per_gpu_hour": 2.5,
    "page_tokens": 64,
    "max_context_tokens": 32768,
    "max_batch_tokens": 4352,
    "max_chunk_tokens": 4096,
    "max_running": 256,
    "max_waiting": 4096,
}
POOL_70B: dict[str, Any] = {**POOL_8B, "tp": 2}
SLO = {"chat": {"ttft_ms": 700, "inter_token_ms": 60, "max_queue_ms": 2000, "default": True}}
CHAT = {
    "model": "m",
    "prompt": {"p50": 640, "p95": 4096, "max": 16384},
    "output": {"p50": 80, "p95": 400},
    "max_output": 512,
}


def fleet(pool: dict[str, Any], section: dict[str, Any] | None = None, **rest: Any) -> SimFleet:
    """`pool` with tp 2 is the 70 B model in fp8, otherwise the 8 B one; `section` is its part of `simulation`."""
    is_large = pool.get("tp", 1) > 1
    shape = "llama-3.1-70b" if is_large else "llama-3.1-8b"
    mine = {"host_ms": 0.5, **({"weights": "fp8"} if is_large else {}), **(section or {})}
    value = {
        "models": {"m": {"source": "hf:org/name@main"}},
        "pools": {"p": pool},
        "classes": rest.pop("classes", SLO),
        "tenants": {"dev": {}},
        "simulation": {"models": {"m": {"shape": shape}}, "pools": {"p": mine}, **rest},
    }
    return parse_fleet(yaml.safe_dump(value))


def fleet_of(pools: dict[str, Any], sections: dict[str, Any], classes: dict[str, Any]) -> SimFleet:
    """Several pools of the 8 B model; `sections` are theirs in `simulation`."""
    value = {
        "models": {"m": {"source": "hf:org/name@main"}},
        "pools": pools,
        "classes": classes,
        "tenants": {"dev": {}},
        "simulation": {"models": {"m": {"shape": "llama-3.1-8b"}}, "pools": sections},
    }
    return parse_fleet(yaml.safe_dump(value))


def steady(rps: float, for_s: float, **changes: Any) -> Workload:
    """Chat requests at a constant rate."""
    return read_workload({"name": "steady", "phases": [{"for_s": for_s, "rps": rps}], "mix": [{**CHAT, **changes}]})


def run(
    fleet: SimFleet, workload: Workload, options: Options, forecasters: dict[str, Forecaster] | None = None
) -> tuple[Outcome, dict[str, Any]]:
    """A run and its JSON."""
    outcome = Simulation(fleet, options, forecasters).run(generate(workload, options.seed))
    return outcome, to_json(outcome)


def run_closed(fleet: SimFleet, lengths: tuple[Lengths, Lengths], users: int, count: int, options: Options) -> Outcome:
    """`count` requests of `users` who wait for each answer; the declared limit is the actual output."""
    loop = ClosedLoop("m", *lengths, num_users=users, num_requests=count, seed=options.seed)
    return Simulation(fleet, options).run(loop.first(), loop.after)
