"""The whole engine: nano-vllm's published load, with overlap and without, graphs and without; and the 8B shape."""

from __future__ import annotations

import torch

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.load import Ran, requests_of, run_load
from benchmarks.gpu.random_model import LLAMA_8B, QWEN3_600M, TINY, runner_of, settings_of
from headrace_worker.models.model_config import ModelConfig

_LARGE = {"max_running": 256, "max_batch_tokens": 8192, "max_chunk_tokens": 4096, "max_context": 4096}
_MOST_KV_BYTES = 64 * 1024**3
_SMALL = {"max_running": 4, "max_batch_tokens": 32, "max_chunk_tokens": 16, "num_pages": 64, "max_context": 64}


def serve(bench: Bench, config: ModelConfig, load: list[tuple[list[int], int]], **changes: object) -> Ran:
    """The load through an engine of its own, with pages for all of it."""
    sizes: dict[str, object] = dict(_SMALL)
    if not bench.smoke:
        sizes = {**_LARGE, "kv_bytes": min(_MOST_KV_BYTES, torch.cuda.mem_get_info()[0] // 2)}
    attention = "torch" if bench.smoke else "auto"
    settings = settings_of(bench.device, attention=attention, **(sizes | changes))
    runner = runner_of(config, settings)
    try:
        return run_load(settings, runner, load)
    finally:
        runner.shut()


def main() -> None:
    bench = Bench("engine")
    small, large = (TINY, TINY) if bench.smoke else (QWEN3_600M, LLAMA_8B)
    load = requests_of(3, 3, 9, 90) if bench.smoke else requests_of(256, 100, 1024, 100_000)
    shorter = load[:1] if bench.smoke else requests_of(256, 100, 512, 100_000)
    rates: dict[str, float] = {}

    def rate(name: str, config: ModelConfig, load: list[tuple[list[int], int]], **changes: object) -> None:
        with bench.part(name):
            ran = serve(bench, config, load, **changes)
            rates[name] = ran.num_tokens / ran.took_s
            note = f"{ran.num_steps} steps of {ran.took_s / ran.num_steps * 1e3:.2f} ms"
            bench.add(Row(name, rates[name], "tokens/s", note=note))
            if not changes and ran.device_share is not None:
                gap = 1 - ran.device_share
                what = f"{name}: steps at whose end the device had nothing to do"
                bench.add(Row(what, gap, "of steps", 0.05, at_most=True))

    rate("0.6B, 256 sequences", small, load)
    rate("8B, 256 sequences of 100 to 512", large, shorter)
    rate("0.6B, 256 sequences, no overlap", small, load, overlap="off")
    rate("0.6B, 256 sequences, no graphs", small, load, graphs=False)
    for what in ("overlap", "graphs"):
        with_it, without = rates.get("0.6B, 256 sequences"), rates.get(f"0.6B, 256 sequences, no {what}")
        gain = with_it / without if with_it and without else None
        bench.add(Row(f"{what} beside none", gain, "x", note="" if gain else "one of them was not measured"))


if __name__ == "__main__":
    main()
