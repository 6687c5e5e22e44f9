"""The whole engine: nano-vllm's published load, with overlap and without, graphs and without; and the 8B shape."""

from __future__ import annotations

import gc

import torch

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.load import Ran, requests_of, run_load
from benchmarks.gpu.random_model import LLAMA_8B, QWEN3_600M, TINY, runner_of, settings_of
from headrace_worker.models.model_config import ModelConfig

_LARGE = {"max_running": 256, "max_batch_tokens": 8192, "max_chunk_tokens": 4096, "max_context": 4096}
_SMALL = {"max_running": 4, "max_batch_tokens": 32, "max_chunk_tokens": 16, "num_pages": 64, "max_context": 64}


def _run(bench: Bench, config: ModelConfig, load: list[tuple[list[int], int]], **changes: object) -> Ran:
    sizes = _SMALL if bench.smoke else _LARGE
    attention = "torch" if bench.smoke else "auto"
    settings = settings_of(bench.device, attention=attention, **(sizes | changes))
    runner = runner_of(config, settings)
    ran = run_load(settings, runner, load)
    runner.shut()
    del runner
    gc.collect()
    if not bench.smoke:
        torch.cuda.empty_cache()
    return ran


def main() -> None:
    bench = Bench("engine")
    small = TINY if bench.smoke else QWEN3_600M
    load = requests_of(3, 3, 9, 90) if bench.smoke else requests_of(256, 100, 1024, 100_000)
    rates: dict[str, float] = {}
    cases: dict[str, dict[str, object]] = {
        "overlap": {},
        "no overlap": {"overlap": "off"},
        "no graphs": {"graphs": False},
    }
    for name, changes in cases.items():
        ran = _run(bench, small, load, **changes)
        rates[name] = ran.num_tokens / ran.took_s
        note = f"{ran.num_steps} steps of {ran.took_s / ran.num_steps * 1e3:.2f} ms"
        bench.add(Row(f"0.6B, 256 sequences, {name}", rates[name], "tokens/s", note=note))
        if name == "overlap" and ran.device_share is not None:
            gap = 1 - ran.device_share
            bench.add(Row("steps at whose end the device had nothing to do", gap, "of steps", 0.05, at_most=True))
    bench.add(Row("overlap beside none", rates["overlap"] / rates["no overlap"], "x"))
    bench.add(Row("graphs beside none", rates["overlap"] / rates["no graphs"], "x"))
    large = TINY if bench.smoke else LLAMA_8B
    ran = _run(bench, large, load[:1] if bench.smoke else requests_of(256, 100, 512, 100_000))
    bench.add(Row("8B, 256 sequences of 100 to 512", ran.num_tokens / ran.took_s, "tokens/s"))


if __name__ == "__main__":
    main()
