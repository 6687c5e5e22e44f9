"""`headrace simulate WORKLOAD --fleet FILE`: run a fleet on a virtual clock and say what its users would have seen."""

import argparse
import gc
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from headrace_controlplane.forecast import ForecastUnavailable, LoadForecaster
from headrace_sim.assembly import Options
from headrace_sim.capacity import search_capacity
from headrace_sim.compiled import is_compiled, run_compiled
from headrace_sim.errors import SimulationError
from headrace_sim.fleet import SimFleet, parse_fleet
from headrace_sim.page import to_html
from headrace_sim.report import to_json, to_table
from headrace_sim.scaling import Forecaster
from headrace_sim.simulation import Outcome, Simulation
from headrace_worker.perf.command_end import ended
from headrace_workload.arrival import Arrival
from headrace_workload.errors import WorkloadError
from headrace_workload.source import Source, open_source
from headrace_workload.traces import TraceOptions, thin

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """0 for a run that ended (whatever it found), 2 for a file or flag that cannot be used."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    flags = _parser().parse_args(words)
    if flags.compiled and not is_compiled():
        try:
            return run_compiled("headrace_sim", words)
        except SimulationError as error:
            print(f"headrace simulate: {error}", file=sys.stderr)
            return USAGE_ERROR
    # Jobs come and go by the million and form no cycles: the collector would look through them in vain.
    gc.set_threshold(200_000, 50, 50)
    try:
        source = open_source(flags.workload)
        fleet = parse_fleet(_read(flags.fleet))
        outcome = _run(flags, source, fleet)
    except (WorkloadError, SimulationError, ForecastUnavailable) as error:
        print(f"headrace simulate: {error}", file=sys.stderr)
        return USAGE_ERROR
    summary = to_json(outcome)
    print(json.dumps(summary, indent=2) if flags.json else to_table(summary))
    if flags.html:
        title = f"{source.name} on {Path(flags.fleet).name}"
        try:
            flags.html.write_text(to_html(title, summary), encoding="utf-8")
        except OSError as error:
            print(f"headrace simulate: --html: cannot be written: {error}", file=sys.stderr)
            return USAGE_ERROR
    return 0


def _run(flags: argparse.Namespace, source: Source, fleet: SimFleet) -> Outcome:
    _check_trace_flags(flags, source)
    options = Options(
        seed=flags.seed,
        fast_forward=not flags.exact,
        shares_prefixes=_shares_prefixes(source),
        cache_blind=flags.cache_blind,
    )
    capacities: dict[str, float] = {}
    for name, pool in fleet.pools.items():
        scaling = pool.section.scaling
        if scaling is not None and scaling.capacity is None:
            if source.spec is None:
                raise SimulationError(f"pools.{name}.scaling.capacity must be given for a trace")
            capacities[name] = search_capacity(fleet, name, source.spec, flags.seed).tokens_per_s
    outcome = Simulation(fleet, options, _forecasters(fleet), capacities).run(_arrivals(flags, source))
    if not outcome.books.num_arrived:
        raise SimulationError(f"{source.name}: no request arrives")
    return outcome


def _check_trace_flags(flags: argparse.Namespace, source: Source) -> None:
    for name in ("model", "max_output"):
        if source.spec is not None and getattr(flags, name) is not None:
            raise SimulationError(f"--{name.replace('_', '-')}: of a trace; {source.name} says it by itself")


def _arrivals(flags: argparse.Namespace, source: Source) -> Iterable[Arrival]:
    options = TraceOptions(model=flags.model or "", start_s=flags.start_s, max_output=flags.max_output or 0)
    arrivals: Iterable[Arrival] = source.arrivals(flags.seed, options)
    if flags.for_s is not None:
        arrivals = takewhile(lambda each: each.at_s < flags.for_s, arrivals)
    return arrivals if flags.thin is None else thin(arrivals, flags.thin, flags.seed)


def _forecasters(fleet: SimFleet) -> dict[str, Forecaster]:
    found: dict[str, Forecaster] = {}
    for name, pool in fleet.pools.items():
        scaling = pool.section.scaling
        if scaling is not None and scaling.forecast:
            found[name] = LoadForecaster(scaling.forecast_quantile)
    return found


def _shares_prefixes(source: Source) -> bool:
    """Whether two prompts may begin alike; of a trace nobody knows before it was read."""
    return source.spec is None or any(kind.sessions or kind.prefix for kind in source.spec.kinds)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SimulationError(f"--fleet: {path} cannot be read: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace simulate", description="Run a fleet on a virtual clock.")
    add = parser.add_argument
    add(
        "workload",
        metavar="WORKLOAD",
        help="a preset such as chat-burst, a YAML or JSON file, or a trace",
    )
    add("--fleet", required=True, metavar="FILE", help="fleet.yaml; its section `simulation` says what cards cannot")
    add("--seed", type=int, default=0, metavar="N", help="of arrivals and of ties between replicas (0)")
    add("--exact", action="store_true", help="plan every step, also where nobody enters or leaves")
    add("--cache-blind", action="store_true", help="route as if no replica had cached anything")
    add("--for-s", type=_positive, metavar="S", help="only arrivals of the first so many seconds")
    add("--start-s", type=_not_negative, default=0.0, metavar="S", help="of a trace: leave out what is before")
    add("--thin", type=_share, metavar="SHARE", help="keep this share of the arrivals")
    add("--model", metavar="M", help="of a trace: the model that its requests ask for")
    add("--max-output", type=_count, metavar="N", help="of a trace: the output limit that its requests declare")
    add("--compiled", action="store_true", help="compile what decides first (a minute, once): twice as fast, same run")
    add("--html", type=_output, metavar="FILE", help="write a page with plots")
    add("--json", action="store_true", help="JSON instead of a table")
    return parser


def _positive(text: str) -> float:
    return _within(text, lambda value: 0 < value < math.inf, "a number above 0")


def _not_negative(text: str) -> float:
    return _within(text, lambda value: 0 <= value < math.inf, "a number from 0 up")


def _share(text: str) -> float:
    return _within(text, lambda value: 0 < value <= 1, "a share above 0, at most 1")


def _count(text: str) -> int:
    return int(_within(text, lambda value: value >= 1 and value == int(value), "a whole number from 1 up"))


def _within(text: str, is_good: Callable[[float], bool], words: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not is_good(value):
        raise argparse.ArgumentTypeError(f"expected {words}, got {text}")
    return value


def _output(text: str) -> Path:
    """Tried before the run, which may take long; nothing is left behind if it does not come to its end."""
    path = Path(text)
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot be written: {error}") from None
    return path


if __name__ == "__main__":
    sys.exit(ended(main))
