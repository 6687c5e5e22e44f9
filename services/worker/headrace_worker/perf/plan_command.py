"""The `plan` command: flags in, a table, JSON or a page out. Reads config files, probes a CPU.

The arithmetic is in `plan`, and in `load_plan` once a load is named.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace_worker.perf.cards import CARD_NAMES, CPU, GIB, MOST_GIB, Card, card_named, cpu_card
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.load_output import load_json, load_page, load_table
from headrace_worker.perf.load_plan import Wish, recommend
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.plan import DEFAULT_CONTEXT, PlanReport, PlanRequest, StepPrediction, plan
from headrace_worker.perf.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, kv_precision, weight_precision
from headrace_worker.perf.shape_file import shape_named

USAGE_ERROR = 2
DEFAULT_PROMPT_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 256
_LOAD_FLAGS = ("prompt_tokens", "output_tokens", "rps", "ttft_ms", "inter_token_ms", "price_per_gpu_hour", "html")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; 0 for an answer (also that it does not fit), 2 for a flag that cannot be used."""
    flags = _parser().parse_args(arguments)
    try:
        request, wish = _request(flags), _wish(flags)
        report = plan(request)
        options = recommend(request, wish) if wish is not None else ()
    except PerfError as error:
        print(f"headrace plan: --{error.field.replace('_', '-')}: {error.reason}", file=sys.stderr)
        return USAGE_ERROR
    value, text = to_json(report), to_table(report)
    if wish is not None:
        value["load"] = load_json(report, wish, options)
        text = f"{text}\n\n{load_table(report, wish, options)}"
        if flags.html is not None:
            title = f"{request.shape.name} on {request.card.name}"
            try:
                Path(flags.html).write_text(load_page(title, text, wish, options), encoding="utf-8")
            except OSError as error:
                print(f"headrace plan: --html: cannot be written: {error}", file=sys.stderr)
                return USAGE_ERROR
    print(json.dumps(value, indent=2) if flags.json else text)
    return 0


def to_json(report: PlanReport) -> dict[str, Any]:
    """The report with the field names of the command surface."""
    request, layout = report.request, report.layout
    return {
        "model": request.shape.name,
        "params": request.shape.advertised_params,
        "precision": request.weights.name,
        "kv_precision": request.kv.name,
        "gpu": request.card.name,
        "context": request.context,
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "kv_bytes_per_token": report.kv_bytes_per_token,
        "kv_bytes_per_sequence": report.kv_bytes_per_sequence,
        "weight_bytes": report.weight_bytes,
        "devices": layout.num_devices,
        "min_devices": report.min_devices,
        "fits": report.fits,
        "full_reservations": report.full_reservations,
        "hbm_bytes_per_device": request.card.memory_bytes,
        "runtime_reserve_bytes_per_device": report.reserve_bytes_per_device,
        "workspace_bytes_per_device": report.workspace_bytes_per_device,
        "weight_bytes_per_device": max(device.weight_bytes for device in report.devices_memory),
        "kv_pool_bytes_per_device": max(0, min(device.pool_bytes for device in report.devices_memory)),
        "predictions": {
            "prefill": [{"num_tokens": each.num_tokens, **_step_json(each)} for each in report.prefill],
            "decode": [
                {"batch": each.batch, "tokens_per_s": each.batch / each.time_s, **_step_json(each)}
                for each in report.decode
            ],
        },
        "notes": list(report.notes),
    }


def _step_json(step: StepPrediction) -> dict[str, Any]:
    shares = {str(resource): round(share, 4) for resource, share in step.shares.items()}
    return {"context": step.context, "time_s": step.time_s, "binding": str(step.binding), "shares": shares}


def to_table(report: PlanReport) -> str:
    """The report for people."""
    request, layout = report.request, report.layout
    title = f"{request.shape.name}, {request.weights.name} weights, {request.kv.name} KV, on {layout.num_devices} x "
    lines = [f"{title}{request.card.name} (tp {layout.tensor}, pp {layout.pipeline})", ""]
    facts = [
        ("weights", f"{report.weight_bytes / GIB:.2f} GiB", f"{report.weight_bytes:,} bytes"),
        ("KV per token", f"{report.kv_bytes_per_token / 1024:.1f} KiB", f"{report.kv_bytes_per_token:,} bytes"),
        (f"KV per {request.context:,} tokens", f"{report.kv_bytes_per_sequence / GIB:.3f} GiB", ""),
        ("reserve per device", f"{report.reserve_bytes_per_device / GIB:.2f} GiB", "workspace estimated at "
         f"{report.workspace_bytes_per_device / GIB:.2f} GiB"),
        ("full reservations", f"{report.full_reservations}", f"sequences of {request.context:,} tokens"),
        ("devices needed", str(report.min_devices or "no layout fits"), "for one such sequence"),
    ]  # fmt: skip
    lines += [f"  {name:<24}{value:>14}   {more}".rstrip() for name, value, more in facts]
    if report.fits:
        lines += ["", f"  {'step':<24}{'predicted':>14}   binds"]
        lines += [f"  {'prefill ' + format(each.num_tokens, ','):<24}{_row(each)}" for each in report.prefill]
        lines += [f"  {'decode batch ' + format(each.batch, ','):<24}{_row(each)}" for each in report.decode]
    return "\n".join([*lines, *(f"\n  note: {note}" for note in report.notes)])


def _row(step: StepPrediction) -> str:
    return f"{step.time_s * 1e3:>11.1f} ms   {step.binding} at {step.shares[step.binding]:.0%}"


def _request(flags: argparse.Namespace) -> PlanRequest:
    shape = shape_named(flags.model)
    if flags.params is not None:
        shape = shape.with_params(flags.params)
    reserve = flags.runtime_reserve_gib
    if reserve is not None and not 0 <= reserve <= MOST_GIB:
        raise PerfError("runtime_reserve_gib", f"must be at least 0 and at most {MOST_GIB:,}, not {reserve}")
    chosen = flags.tp is not None or flags.pp is not None
    return PlanRequest(
        shape=shape,
        weights=weight_precision(flags.precision or ("fp32" if flags.gpu == CPU else "bf16")),
        kv=kv_precision(flags.kv_precision),
        card=_card(flags.gpu, flags.hbm_gib),
        context=min(DEFAULT_CONTEXT, shape.max_context) if flags.context is None else flags.context,
        layout=Layout(_or_one(flags.tp), _or_one(flags.pp)) if chosen else None,
        reserve_bytes=None if reserve is None else int(reserve * GIB),
    )


def _wish(flags: argparse.Namespace) -> Wish | None:
    """The load, if any flag speaks of one."""
    if all(getattr(flags, name) is None for name in _LOAD_FLAGS):
        return None
    return Wish(
        prompt_tokens=DEFAULT_PROMPT_TOKENS if flags.prompt_tokens is None else flags.prompt_tokens,
        output_tokens=DEFAULT_OUTPUT_TOKENS if flags.output_tokens is None else flags.output_tokens,
        ttft_s=None if flags.ttft_ms is None else flags.ttft_ms / 1000,
        inter_token_s=None if flags.inter_token_ms is None else flags.inter_token_ms / 1000,
        rps=flags.rps,
        price_per_gpu_hour=flags.price_per_gpu_hour,
    )


def _or_one(degree: int | None) -> int:
    return 1 if degree is None else degree


def _card(name: str, hbm_gib: float | None) -> Card:
    if name.lower() == CPU:
        from headrace_worker.perf.cpu_probe import measure_cpu  # numpy and a second of work, for this card only

        card = cpu_card(measure_cpu())
    else:
        card = card_named(name)
    return card if hbm_gib is None else card.with_memory_gib(hbm_gib)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace plan", description="What a card, a model and a layout can do.")
    add = parser.add_argument
    add("--model", required=True, metavar="M", help=f"{', '.join(BUILT_IN_MODELS)}, or a path to a config.json")
    add("--params", type=int, metavar="N", help="parameters, if the model's advertised count is another")
    add("--precision", metavar="P", help=f"of weights: {', '.join(WEIGHT_PRECISIONS)} (bf16; fp32 on cpu)")
    add("--kv-precision", default="bf16", metavar="P", help=f"of KV: {', '.join(KV_PRECISIONS)} (bf16)")
    add("--gpu", default="h100-80gib", metavar="G", help=f"{', '.join(CARD_NAMES)} (h100-80gib; cpu: this host)")
    add("--hbm-gib", type=float, metavar="N", help="memory per device, if another than the card's")
    add("--runtime-reserve-gib", type=float, metavar="N", help="kept free of KV on each device (4; estimated on cpu)")
    add("--tp", type=int, metavar="N", help="tensor-parallel degree (the fewest devices that hold one sequence)")
    add("--pp", type=int, metavar="N", help="pipeline stages")
    add("--context", type=int, metavar="N", help=f"tokens of a full-length sequence ({DEFAULT_CONTEXT})")
    load = parser.add_argument_group("under a load", "predicted TTFT and ITL, cost, the cheapest layout within budgets")
    load.add_argument("--prompt-tokens", type=int, metavar="N", help=f"of a request ({DEFAULT_PROMPT_TOKENS})")
    load.add_argument("--output-tokens", type=int, metavar="N", help=f"of a request ({DEFAULT_OUTPUT_TOKENS})")
    load.add_argument("--rps", type=float, metavar="R", help="requests per second of the whole fleet")
    load.add_argument("--ttft-ms", type=float, metavar="MS", help="budget to the first token")
    load.add_argument("--inter-token-ms", type=float, metavar="MS", help="budget between tokens")
    load.add_argument("--price-per-gpu-hour", type=float, metavar="P", help="money per device hour")
    load.add_argument("--html", metavar="FILE", help="write a page with the frontier")
    add("--json", action="store_true", help="JSON instead of a table")
    return parser
