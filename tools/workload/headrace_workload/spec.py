"""A declarative workload: a rate over time, and a mix of kinds of requests. `docs/simulate.md` describes the file.

    name: chat-burst
    phases: [{for_s: 60, rps: 120}, {for_s: 10, rps: 120, to_rps: 360}, {for_s: 60, rps: 360}]
    cv: 1.0
    mix:
      - {model: fast, weight: 3, prompt: {p50: 640, p95: 4096}, output: {p50: 80, p95: 400}, max_output: 512}
      - {model: deep, weight: 1, prompt: ..., sessions: {turns: 4, think_s: 20}, prefix: {count: 20, tokens: 800}}

Reads plain values; knows no YAML and no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_workload.arrivals import Phase
from headrace_workload.errors import WorkloadError
from headrace_workload.lengths import MOST_TOKENS, Lengths, read_lengths

_MOST = 1e9
# Each is a weight in a table, or a draw.
_MOST_PREFIXES = 1_000_000
_MOST_TURNS = 10_000


@dataclass(frozen=True)
class Sessions:
    """Conversations of `turns` turns on average (geometric); the next turn comes `think_s` later (exponential).

    Each turn's prompt holds all of the turns before it, their outputs included.
    """

    turns: float
    think_s: float


@dataclass(frozen=True)
class Prefixes:
    """One of `count` shared beginnings of `num_tokens` tokens, chosen by Zipf's law with exponent `skew`."""

    count: int
    num_tokens: int
    skew: float = 1.0


@dataclass(frozen=True)
class Kind:
    """One kind of request. `prompt` counts what a turn adds beyond the shared prefix and earlier turns."""

    model: str
    prompt: Lengths
    output: Lengths
    max_output: int
    weight: float = 1.0
    tenants: tuple[str, ...] = ("",)
    slo_class: str = ""
    sessions: Sessions | None = None
    prefix: Prefixes | None = None
    max_prompt: int = 1_000_000


@dataclass(frozen=True)
class Workload:
    """`cv` is the coefficient of variation of the gaps between arrivals: 1 Poisson, 0 even, above 1 bursty."""

    name: str
    phases: tuple[Phase, ...]
    kinds: tuple[Kind, ...]
    cv: float = 1.0

    @property
    def duration_s(self) -> float:
        return sum(phase.for_s for phase in self.phases)


def read_workload(value: Any) -> Workload:
    """The workload that plain values describe; WorkloadError names the field that is wrong."""
    fields = _mapping(value, "workload", {"name", "phases", "mix", "cv"}, {"phases", "mix"})
    phases = tuple(_phase(each, f"phases[{i}]") for i, each in enumerate(_list(fields["phases"], "phases")))
    kinds = tuple(_kind(each, f"mix[{i}]") for i, each in enumerate(_list(fields["mix"], "mix")))
    if not any(kind.weight > 0 for kind in kinds):
        raise WorkloadError("mix", "every weight is 0")
    name = fields.get("name", "workload")
    if not isinstance(name, str):
        raise WorkloadError("name", f"expected text, got {name!r}")
    return Workload(name, phases, kinds, _number(fields.get("cv", 1.0), "cv", 0, 100))


def _phase(value: Any, where: str) -> Phase:
    fields = _mapping(value, where, {"for_s", "rps", "to_rps"}, {"for_s", "rps"})
    for_s = _number(fields["for_s"], f"{where}.for_s", 1e-6)
    rps = _number(fields["rps"], f"{where}.rps", 0)
    return Phase(for_s, rps, _number(fields.get("to_rps", rps), f"{where}.to_rps", 0))


def _kind(value: Any, where: str) -> Kind:
    known = {"model", "weight", "prompt", "output", "max_output", "tenants", "slo_class", "sessions", "prefix"}
    fields = _mapping(value, where, {*known, "max_prompt"}, {"model", "prompt", "output", "max_output"})
    tenants = fields.get("tenants", [""])
    for each in [fields["model"], fields.get("slo_class", ""), *_list(tenants, f"{where}.tenants")]:
        if not isinstance(each, str):
            raise WorkloadError(where, f"expected text, got {each!r}")
    return Kind(
        model=fields["model"],
        prompt=read_lengths(fields["prompt"], f"{where}.prompt"),
        output=read_lengths(fields["output"], f"{where}.output"),
        max_output=_whole(fields["max_output"], f"{where}.max_output"),
        weight=_number(fields.get("weight", 1.0), f"{where}.weight", 0),
        tenants=tuple(tenants),
        slo_class=fields.get("slo_class", ""),
        sessions=_sessions(fields["sessions"], f"{where}.sessions") if "sessions" in fields else None,
        prefix=_prefixes(fields["prefix"], f"{where}.prefix") if "prefix" in fields else None,
        max_prompt=_whole(fields.get("max_prompt", 1_000_000), f"{where}.max_prompt"),
    )


def _sessions(value: Any, where: str) -> Sessions:
    fields = _mapping(value, where, {"turns", "think_s"}, {"turns", "think_s"})
    turns = _number(fields["turns"], f"{where}.turns", 1, _MOST_TURNS)
    return Sessions(turns, _number(fields["think_s"], f"{where}.think_s", 0))


def _prefixes(value: Any, where: str) -> Prefixes:
    fields = _mapping(value, where, {"count", "tokens", "skew"}, {"count", "tokens"})
    count = _whole(fields["count"], f"{where}.count", _MOST_PREFIXES)
    num_tokens = _whole(fields["tokens"], f"{where}.tokens", MOST_TOKENS)
    return Prefixes(count, num_tokens, _number(fields.get("skew", 1.0), f"{where}.skew", 0, 10))


def _mapping(value: Any, where: str, known: set[str], required: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WorkloadError(where, f"expected a mapping, got {value!r}")
    for key in value:
        if key not in known:
            raise WorkloadError(f"{where}.{key}", f"unknown key; known are {', '.join(sorted(known))}")
    for key in sorted(required - set(value)):
        raise WorkloadError(f"{where}.{key}", "is missing")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise WorkloadError(where, f"expected a list that is not empty, got {value!r}")
    return value


def _number(value: Any, where: str, low: float, high: float = _MOST) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise WorkloadError(where, f"expected a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def _whole(value: Any, where: str, high: float = _MOST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise WorkloadError(where, f"expected a whole number from 1 to {high:g}, got {value!r}")
    return value
