"""From a workload to requests with their times. Knows no server."""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from headrace_bench.load import Due
from headrace_bench.target import Ask
from headrace_workload.arrival import Arrival
from headrace_workload.prompts import text_of
from headrace_workload.source import Source, open_source
from headrace_workload.spec import read_workload
from headrace_workload.traces import TraceOptions


def source(options: argparse.Namespace) -> Source:
    """Raises WorkloadError."""
    if options.workload:
        return open_source(options.workload)
    spec = {
        "name": "rate",
        "phases": [{"for_s": options.duration, "rps": options.rate}],
        "cv": options.cv,
        "mix": [
            {
                "model": options.model or "model",
                "prompt": options.prompt_tokens,
                "output": options.output_tokens,
                "max_output": options.output_tokens,
            }
        ],
    }
    return Source("rate", read_workload(spec))


def dues(of: Source, options: argparse.Namespace, known: Sequence[str]) -> Iterator[Due[Ask]]:
    """Every request in order of time. A server with one model is asked for it, whatever the workload calls it.

    Raises ValueError for a model that the server does not have.
    """
    arrivals = of.arrivals(options.seed, TraceOptions(model=options.model, start_s=options.start))
    for arrival in islice(arrivals, options.requests):
        model = options.model or (known[0] if len(known) == 1 else arrival.model)
        if model not in known:
            raise ValueError(f"the server has no model {model!r}; it has: {', '.join(known)} (--model chooses)")
        yield Due(arrival.at_s / options.speed, arrival.number, model, _ask(arrival, model, options))


def _ask(arrival: Arrival, model: str, options: argparse.Namespace) -> Ask:
    extra: dict[str, Any] = dict(options.extra)
    if options.ignore_eos:
        extra |= {"ignore_eos": True, "min_tokens": arrival.num_output}
    return Ask(model, text_of(arrival.segments), arrival.num_output, options.endpoint, extra)
