"""The command's words, checked."""

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace_bench.summary import Slo

_EPILOG = """
examples:
  headrace bench http://127.0.0.1:8080 --rate 4 --duration 30
  headrace bench http://127.0.0.1:8080 --workload chat --model smollm2-135m-instruct --requests 100 --html report.html
  headrace bench http://127.0.0.1:8080 --workload conversation_trace.jsonl --speed 2 --slo-ttft-ms 700
"""


def parse(words: list[str]) -> argparse.Namespace:
    """Exits with status 2 for what cannot be."""
    parser = argparse.ArgumentParser(
        prog="headrace bench",
        description="Open-loop load on an OpenAI-style server: requests are sent when they are due, "
        "whatever became of those before.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="base URL of the server; /v1 is added if it is not there")
    parser.add_argument(
        "--model", default="", help="model of every request (default: the workload's, or the only one there is)"
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("HEADRACE_API_KEY") or os.environ.get("OPENAI_API_KEY", ""),
        help="(HEADRACE_API_KEY, OPENAI_API_KEY)",
    )
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    what = parser.add_argument_group("what arrives")
    what.add_argument(
        "--workload", default="", metavar="WHAT", help="preset, YAML or JSON specification, or trace file; else --rate"
    )
    what.add_argument("--rate", type=_positive, default=1.0, metavar="RPS", help="requests per second (default 1)")
    what.add_argument("--duration", type=_positive, default=30.0, metavar="S", help="seconds of --rate (default 30)")
    what.add_argument(
        "--cv",
        type=_not_negative,
        default=1.0,
        help="burstiness of --rate: 1 Poisson, 0 even, above 1 Gamma with that coefficient of variation",
    )
    what.add_argument("--prompt-tokens", type=_count, default=200, help="of each prompt of --rate, about (default 200)")
    what.add_argument("--output-tokens", type=_count, default=100, help="most of each answer of --rate (default 100)")
    what.add_argument("--requests", type=_count, default=None, metavar="N", help="stop after N requests")
    what.add_argument("--speed", type=_positive, default=1.0, help="play a workload so many times as fast")
    what.add_argument("--from", dest="start", type=_not_negative, default=0.0, metavar="S", help="begin a trace there")
    what.add_argument("--seed", type=int, default=0)
    what.add_argument(
        "--ignore-eos",
        action="store_true",
        help="ask for exactly the output tokens of the workload, where the server can",
    )
    what.add_argument("--extra", type=_json, default={}, metavar="JSON", help="fields of every request's body")
    good = parser.add_argument_group("what counts as good")
    good.add_argument("--slo-ttft-ms", type=_positive, default=None)
    good.add_argument("--slo-tpot-ms", type=_positive, default=None)
    good.add_argument("--slo-latency-ms", type=_positive, default=None)
    out = parser.add_argument_group("what comes out")
    out.add_argument("--json", type=_output, metavar="FILE", help="figures and every request; - for standard output")
    out.add_argument("--html", type=_output, metavar="FILE", help="report with plots")
    out.add_argument("--timeout", type=_positive, default=600.0, metavar="S", help="longest wait for the next bytes")
    return parser.parse_args(words)


def slo(options: argparse.Namespace) -> Slo:
    limits = (options.slo_ttft_ms, options.slo_tpot_ms, options.slo_latency_ms)
    return Slo(*(None if limit is None else limit / 1000 for limit in limits))


def shown(options: argparse.Namespace) -> dict[str, Any]:
    """For the report: everything but the key."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "api_key"
    }


def _positive(text: str) -> float:
    value = _number(text, float)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def _not_negative(text: str) -> float:
    value = _number(text, float)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number from 0 up, got {text}")
    return value


def _count(text: str) -> int:
    value = _number(text, int)
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, got {text}")
    return int(value)


def _number(text: str, kind: Callable[[str], float]) -> float:
    """Not a number for what is none, so that one sentence says what is expected."""
    try:
        return kind(text)
    except ValueError:
        return math.nan


def _output(text: str) -> Path:
    """Tried before the run: what was measured must not be lost for a word."""
    path = Path(text)
    if text != "-":
        try:
            path.open("a").close()
        except OSError as error:
            raise argparse.ArgumentTypeError(f"cannot be written: {error}") from None
    return path


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return value
