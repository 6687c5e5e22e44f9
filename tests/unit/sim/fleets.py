"""Small fleets for the tests of the simulator."""

from typing import Any

import yaml

from headrace_sim.fleet import SimFleet, parse_fleet

POOL = {
    "model": "m",
    "device": "cuda",
    "card": "h100-80gib",
    "precision": "bfloat16",
    "max_context_tokens": 16384,
    "max_batch_tokens": 2048,
    "max_chunk_tokens": 1024,
    "max_running": 128,
    "page_tokens": 64,
}


def fleet_file(
    pool: dict[str, Any] | None = None, simulation: dict[str, Any] | None = None, **sections: Any
) -> SimFleet:
    """One pool of one 8 B model; `pool` and the sections replace what is there."""
    value: dict[str, Any] = {
        "models": {"m": {"source": "hf:a/b@main"}},
        "pools": {"p": {**POOL, **(pool or {})}},
        "classes": {"chat": {"ttft_ms": 1000, "inter_token_ms": 100, "max_queue_ms": 5000, "default": True}},
        "tenants": {"dev": {}},
        **sections,
    }
    value["simulation"] = {"models": {"m": {"shape": "llama-3.1-8b"}}, **(simulation or {})}
    return parse_fleet(yaml.safe_dump(value))


def requests(rps: float, for_s: float, **kind: Any) -> dict[str, Any]:
    """A plain workload of one kind."""
    base = {"model": "m", "prompt": {"p50": 300, "p95": 2000, "max": 6000}, "output": {"p50": 40, "p95": 200}}
    return {"phases": [{"for_s": for_s, "rps": rps}], "mix": [{**base, "max_output": 256, **kind}]}
