"""Prompts of the Llama-3.1-8B shape against the rate of bfloat16 products that was measured here."""

import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_model import LLAMA_8B, TINY, load_random, settings_of
from headrace_worker.attention.base import AttentionBatch
from headrace_worker.execution.kv_cache import KvCache, KvLayout
from headrace_worker.execution.loaded import Loaded

PAGE = 16


def _prompt(bench: Bench, loaded: Loaded, cache: KvCache, length: int) -> None:
    config = loaded.model.config
    embedding = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    params = loaded.weight_bytes // loaded.dtype.itemsize - embedding
    table = list(range(1, 1 + -(-length // PAGE)))
    batch = AttentionBatch.build([length], [length], [table], PAGE, bench.device)
    ids = torch.randint(0, config.vocab_size, (length,), device=bench.device)
    positions = torch.arange(length, device=bench.device)

    def run() -> object:
        step = loaded.attention.begin(batch, cache.layers, config.attention_scale)
        return loaded.model.compute_logits(loaded.model(ids, positions, step)[-1:])

    taken = bench.seconds_in_a_row(run, 5)
    attention = 2 * length**2 * config.num_heads * config.head_dim * config.num_layers
    rate = (2 * params * length + attention) / taken / 1e12
    target = 0.6 if length >= 2048 else None
    bench.share(f"8B, a prompt of {length}: rate", rate, "matmul bf16", target, f"{taken * 1e3:.1f} ms")


def main() -> None:
    bench = Bench("prefill")
    loaded = load_random(TINY if bench.smoke else LLAMA_8B, settings_of(bench.device, attention="triton"))
    longest = 40 if bench.smoke else 8192
    layout = KvLayout.of(loaded.model, PAGE, loaded.kv_dtype, bench.device)
    cache = KvCache(layout, -(-longest // PAGE))
    for length in (longest,) if bench.smoke else (2048, 8192, 1024):
        with bench.part(f"8B, a prompt of {length}"):
            _prompt(bench, loaded, cache, length)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
