"""transformers on the same card, at 64 sequences of one shape; not measured where it is not installed."""

from __future__ import annotations

import importlib.util
import time

import torch

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.engine import serve
from benchmarks.gpu.random_model import QWEN3_600M, TINY
from headrace_worker.models.model_config import ModelConfig

NUM_SEQUENCES, PROMPT, OUTPUT = 64, 256, 128
WARM_UP = 8


def _transformers_rate(bench: Bench, shape: ModelConfig, load: tuple[int, int, int]) -> float:
    """Tokens per second of `generate` for one static batch: sequences, their prompt, their output."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    count, prompt, output = load
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    with bench.device:
        make = AutoModelForCausalLM.from_config
        model = make(config, dtype=bench.dtype).eval()  # type: ignore[no-untyped-call]
    ids = torch.randint(1, shape.vocab_size, (count, prompt), device=bench.device)

    def generate(tokens: int) -> float:
        started = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=True,
            temperature=0.6,
            pad_token_id=0,
        )
        if not bench.smoke:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    generate(WARM_UP)
    return count * output / generate(output)


def main() -> None:
    bench = Bench("peer")
    load = (2, 8, 4) if bench.smoke else (NUM_SEQUENCES, PROMPT, OUTPUT)
    count, prompt, output = load
    config = TINY if bench.smoke else QWEN3_600M
    ours = None
    with bench.part("0.6B"):
        ran = serve(
            bench, config, [([(7 * row + at) % 90 + 1 for at in range(prompt)], output) for row in range(count)]
        )
        ours = ran.num_tokens / ran.took_s
        bench.add(Row(f"0.6B, {count} sequences", ours, "tokens/s"))
    name = f"beside transformers, {count} sequences"
    if importlib.util.find_spec("transformers") is None:
        bench.add(Row(name, None, "x", 3.0, note="transformers is not installed here"))
        return
    with bench.part(name):
        theirs = _transformers_rate(bench, config, load)
        share = None if ours is None else ours / theirs
        bench.add(Row(name, share, "x", 3.0, note=f"{theirs:.0f} tokens/s"))


if __name__ == "__main__":
    main()
