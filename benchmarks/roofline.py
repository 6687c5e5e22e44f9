"""`make bench-roofline`: the roofline against 45 end-to-end H100 runs that nothing was fitted on.

Prints every row, writes `benchmarks/results/roofline.json`. Lengths are taken as 0.9 of nominal, since that benchmark
draws them uniformly from 0.8 to 1.0 of it; it sends ten requests per user, the first of all users at once. The KV pool
is what vLLM's default of 90 % of HBM leaves.
"""

import csv
import gzip
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import report
from benchmarks.report import Figure
from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.cards import GIB, card_named
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.memory import MemoryDemand, StepShape, workspace_bytes
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, ModelShape
from headrace_worker.perf.plan import PlanRequest, plan
from headrace_worker.perf.precision import kv_precision, weight_precision
from headrace_worker.perf.prediction import ClosedLoop, Prediction, burst_ttft_s, predict_closed_loop
from headrace_worker.perf.step import Roofline, StepLoad

HERE = Path(__file__).parent
DATA = HERE / "data" / "roofline"
LENGTH_SHARE = 0.9
UNUSED_SHARE = 0.1
NUM_WAVES = 10
MODEL = BUILT_IN_MODELS["llama-3.1-70b"]
H100 = card_named("h100-80gib")
WEIGHTS, KV = weight_precision("fp8"), kv_precision("bf16")


@dataclass(frozen=True)
class Row:
    """One end-to-end run and what is predicted for it."""

    tensor: int
    num_prompt_tokens: int
    num_output_tokens: int
    concurrency: int
    ttft_s: float
    tpot_s: float
    predicted: Prediction
    burst_ttft_s: float

    @property
    def tpot_error(self) -> float:
        """Relative, positive where predicted too slow."""
        return self.predicted.tpot_s / self.tpot_s - 1

    @property
    def ttft_error(self) -> float:
        """Relative, positive where predicted too slow."""
        return self.predicted_ttft_s / self.ttft_s - 1

    @property
    def predicted_ttft_s(self) -> float:
        """Mean over the burst at the start and the steady state after it."""
        return self.burst_ttft_s / NUM_WAVES + self.predicted.ttft_s * (1 - 1 / NUM_WAVES)


def end_to_end_rows() -> list[Row]:
    """All 45 rows, predicted."""
    with (DATA / "h100_end_to_end.csv").open() as lines:
        return [_row({key: float(value) for key, value in row.items()}) for row in csv.DictReader(lines)]


def _row(run: dict[str, float]) -> Row:
    layout = Layout(int(run["tp_size"]))
    prompt, output = int(run["isl"] * LENGTH_SHARE), int(run["osl"] * LENGTH_SHARE)
    load = ClosedLoop(prompt, output, int(run["concurrency"]))
    unused = int(UNUSED_SHARE * H100.memory_bytes) + workspace_bytes(MODEL, layout, H100, StepShape())
    # An engine that reserves as it goes holds a sequence at its mean length, not at its final one.
    demand = MemoryDemand(MODEL, WEIGHTS, KV, load.mean_context)
    max_running = demand.full_reservations(H100, layout, unused)
    roofline = Roofline(MODEL, WEIGHTS, KV, H100, layout)
    predicted = predict_closed_loop(roofline, load, max_running)
    burst_s = burst_ttft_s(roofline, prompt, predicted.num_running)
    times = run["ttft_ms"] / 1e3, run["tpot_ms"] / 1e3
    return Row(layout.tensor, int(run["isl"]), int(run["osl"]), load.concurrency, *times, predicted, burst_s)


def print_rows(rows: list[Row]) -> None:
    """The table."""
    print("tp    in   out  conc |  TPOT ms  predicted   error |   TTFT ms  predicted   error | running")
    for row in rows:
        print(
            f"{row.tensor:2d} {row.num_prompt_tokens:5d} {row.num_output_tokens:5d} {row.concurrency:5d} |"
            f" {row.tpot_s * 1e3:8.2f} {row.predicted.tpot_s * 1e3:10.2f} {row.tpot_error:+7.1%} |"
            f" {row.ttft_s * 1e3:9.0f} {row.predicted_ttft_s * 1e3:10.0f} {row.ttft_error:+7.0%} |"
            f" {row.predicted.num_running:7d}"
        )


def tpot_figures(rows: list[Row]) -> list[Figure]:
    """The issue's figure, and the rest of the rows beside it without a target."""
    gated = [abs(row.tpot_error) for row in rows if 4 <= row.concurrency <= 16]
    rest = [abs(row.tpot_error) for row in rows if row.concurrency > 16]
    ttft = [abs(row.ttft_error) for row in rows if row.concurrency <= 16]
    assert len(gated) == 27, "nine runs at each of three concurrencies"
    return [
        Figure("TPOT at concurrency 4-16, 27 rows: median error", median(gated), 0.15),
        Figure("TPOT at concurrency 4-16, 27 rows: worst error", max(gated), 0.30),
        Figure("TPOT at concurrency 32-64, 18 rows: median error", median(rest)),
        Figure("TPOT at concurrency 32-64, 18 rows: worst error", max(rest)),
        Figure("TTFT at concurrency 4-16, 27 rows: median error (no host time)", median(ttft)),
    ]


def design_figures() -> list[Figure]:
    """The reference reservations through the planner, as `headrace plan` gives them."""
    figures = []
    for precision, devices, reservations in (("fp16", 2, 8), ("fp8", 1, 4), ("int4", 1, 17)):
        planned = plan(PlanRequest(MODEL, weight_precision(precision), KV, H100, 8192, reserve_bytes=4 * GIB))
        name = f"70 B {precision}, 80 GiB, 4 GiB reserve"
        figures.append(Figure(f"{name}: devices", planned.layout.num_devices, devices, "exactly"))
        figures.append(Figure(f"{name}: full 8K reservations", planned.full_reservations, reservations, "exactly"))
    return figures


def transfer_figures() -> list[Figure]:
    """A100 over H100 on one 2023 software: the absolute times are that software's, the ratio is the cards'."""
    times: dict[tuple[str, ...], dict[str, tuple[float, float]]] = {}
    with gzip.open(DATA / "splitwise_medians.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            if row["model"] == "llama2-70b" and row["token_size"] == "128":
                key = row["tensor_parallel"], row["prompt_size"], row["batch_size"]
                measured = float(row["prompt_time_ms"]), float(row["token_time_ms"])
                times.setdefault(key, {})[row["hardware"]] = measured
    prompt_errors, token_errors = [], []
    for (tensor, prompt, batch), by_card in times.items():
        predicted = {card: _splitwise(card, int(tensor), int(prompt), int(batch)) for card in by_card}
        ratio = [by_card["a100-80gb"][i] / by_card["h100-80gb"][i] for i in (0, 1)]
        expected = [predicted["a100-80gb"][i] / predicted["h100-80gb"][i] for i in (0, 1)]
        prompt_errors.append(abs(expected[0] / ratio[0] - 1))
        token_errors.append(abs(expected[1] / ratio[1] - 1))
    return [
        Figure("A100 over H100, Llama-2-70B prompt time (Splitwise): median error", median(prompt_errors)),
        Figure("A100 over H100, Llama-2-70B token time (Splitwise): median error", median(token_errors)),
    ]


def _splitwise(card: str, tensor: int, prompt: int, batch: int) -> tuple[float, float]:
    shape = ModelShape("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000, 4096)
    precision = weight_precision("fp16"), kv_precision("fp16")
    roofline = Roofline(shape, *precision, card_named(card.replace("gb", "gib")), Layout(tensor))
    prefill_s = roofline.step_time_s(StepLoad((Prefill(prompt),) * batch))
    return prefill_s, roofline.step_time_s(StepLoad((), batch, batch * (prompt + 64)))


def speed_figure() -> Figure:
    """What one prediction costs the caller; no target."""
    roofline = Roofline(MODEL, WEIGHTS, KV, H100, Layout(2))
    load = StepLoad((Prefill(512),), 64, 64 * 1000)
    start = time.perf_counter()
    for _ in range(200):
        roofline.step_time_s(load)
    return Figure("one step prediction, seconds", (time.perf_counter() - start) / 200)


def main() -> None:
    """Runs, prints, writes."""
    rows = end_to_end_rows()
    print_rows(rows)
    print()
    figures = [*tpot_figures(rows), *design_figures(), *transfer_figures(), speed_figure()]
    report.write("roofline", figures, "arithmetic only: no device is used")


if __name__ == "__main__":
    main()
