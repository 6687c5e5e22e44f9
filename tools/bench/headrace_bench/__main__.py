"""`headrace bench`: load on a server, and what its clients waited for."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from headrace_bench import options as words_of
from headrace_bench import plan
from headrace_bench.load import Progress, Run, drive
from headrace_bench.outcome import Outcome
from headrace_bench.page import page
from headrace_bench.summary import summarize
from headrace_bench.target import Ask, Target
from headrace_workload.errors import WorkloadError
from headrace_workload.source import Source

_LOOK_S = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
_SPREADS = (
    ("TTFT, ms", "ttft_s", 1000),
    ("ITL, ms", "itl_s", 1000),
    ("TPOT, ms", "tpot_s", 1000),
    ("E2E, s", "latency_s", 1),
)


def main() -> None:
    """Exit codes: 0 all requests completed, 1 some failed, 2 wrong usage or no server, 130 stopped by a signal."""
    options = words_of.parse(sys.argv[1:])
    try:
        source = plan.source(options)
        run = asyncio.run(_run(options, source))
    except (WorkloadError, httpx.HTTPError, ValueError) as error:
        print(f"headrace bench: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before the first request: there is nothing to tell
        raise SystemExit(130) from None
    summary = summarize(run, words_of.slo(options))
    _write(options, run, summary)
    raise SystemExit(130 if run.cut_short else 1 if summary["num_failed"] or not run.outcomes else 0)


async def _run(options: argparse.Namespace, source: Source) -> Run:
    headers = {"authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=options.timeout, limits=limits, trust_env=False) as client:
        target = Target(client, base_url(options.url))
        known = await target.models()
        progress = Progress()

        async def send(ask: Ask, outcome: Outcome, start_s: float) -> None:
            await target.run(ask, outcome, start_s)

        loop = asyncio.get_running_loop()
        driving = loop.create_task(drive(plan.dues(source, options, known), send, progress))
        _stop_on_signal(loop, driving)
        with _bar(progress, options.requests) as draw:
            while not driving.done():
                await asyncio.wait([driving], timeout=_LOOK_S)
                draw()
        return await driving


def _stop_on_signal(loop: asyncio.AbstractEventLoop, driving: "asyncio.Task[Run]") -> None:
    """The first one ends the load, and what was measured is told; a second one ends the process."""

    def stop() -> None:
        driving.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)


def base_url(url: str) -> str:
    """With a scheme and the version that OpenAI's clients expect."""
    whole = url if "://" in url else f"http://{url}"
    whole = whole.rstrip("/")
    return whole if whole.endswith("/v1") else f"{whole}/v1"


@contextlib.contextmanager
def _bar(progress: Progress, total: int | None) -> Iterator[Any]:
    """Draws on the terminal; on a pipe, nothing."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("starting", total=total)

        def draw() -> None:
            text = f"{progress.num_running} running, {progress.num_failed} failed"
            bar.update(task, completed=progress.num_ended, total=total or progress.num_sent, description=text)

        yield draw


def _write(options: argparse.Namespace, run: Run, summary: Mapping[str, Any]) -> None:
    shown = words_of.shown(options)
    if options.html:
        options.html.write_text(page(run, summary, shown), encoding="utf-8")
    whole = {"options": shown, "summary": summary, "requests": [asdict(one) for one in run.outcomes]}
    if options.json and str(options.json) == "-":
        print(json.dumps(whole, indent=2))
        return
    if options.json:
        options.json.write_text(json.dumps(whole, indent=2), encoding="utf-8")
    _print(summary)


def _print(summary: Mapping[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("", *_COLUMNS, box=None, pad_edge=False)
    for label, key, scale in _SPREADS:
        values = summary[key]
        table.add_row(label, *(f"{values[name] * scale:.4g}" if values else "-" for name in _COLUMNS))
    console.print(table)
    share = summary["attainment"]
    console.print(
        f"\n{summary['num_completed']} of {summary['num_requests']} requests completed in "
        f"{summary['elapsed_s']:.1f} s: "
        f"{summary['offered_rps']:.2f} offered and {summary['completed_rps']:.2f} completed per second, "
        f"{summary['output_tokens_per_s']:.1f} output tokens per second, "
        f"goodput {summary['goodput_rps']:.2f} per second" + (f" ({share:.1%})" if share is not None else "")
    )
    if summary["cut_short"]:
        console.print(f"INCOMPLETE: stopped by a signal; {summary['num_dropped']} requests that ran are not counted")
    if summary["num_sent_late"]:
        console.print(f"{summary['num_sent_late']} requests were sent late: this client could not keep up")
    for error, count in summary["errors"].items():
        console.print(f"{count} x {error}", markup=False)


if __name__ == "__main__":
    main()
