"""`python -m headrace_sim.experiments NAME [--write FOLDER]`: one comparison of policies, as a Markdown report."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from headrace_controlplane.forecast import ForecastUnavailable
from headrace_sim.errors import SimulationError
from headrace_worker.perf.command_end import ended
from headrace_workload.errors import WorkloadError

USAGE_ERROR = 2

NAMES = {
    "queue-budget": "queue first or first token first, at 700 ms",
    "admission": "future reserve, statistical or optimistic",
    "batching": "static or continuous",
    "chunking": "whole or chunked prefill",
    "routing": "cache-blind or prefix-aware",
    "split-pools": "shared, or prefill and decode apart",
    "scaling": "reactive, forecast and reserve",
    "scaling-choice": "settings of the forecasting scaler, on other days",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace_sim.experiments", description="Policies compared.")
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(f"{k} ({v})" for k, v in NAMES.items()))
    parser.add_argument("--write", type=_folder, metavar="FOLDER", help="write NAME.md and its plots there")
    flags = parser.parse_args(arguments)
    gc.set_threshold(200_000, 50, 50)
    module = import_module(f"headrace_sim.experiments.{flags.name.replace('-', '_')}")
    try:
        report = module.report()
    except (WorkloadError, SimulationError, ForecastUnavailable) as error:
        print(f"headrace_sim.experiments: {error}", file=sys.stderr)
        return USAGE_ERROR
    text = report.to_markdown(flags.name)
    print(text)
    if flags.write:
        for file, content in {f"{flags.name}.md": text, **report.drawings(flags.name)}.items():
            (flags.write / file).write_text(content, encoding="utf-8")
    return 0


def _folder(text: str) -> Path:
    """Looked at before the run, which may take long."""
    path = Path(text)
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} is no folder that can be written to")
    return path


if __name__ == "__main__":
    sys.exit(ended(main))
