"""transformers on the same card, at 64 sequences of one shape; not measured where it is not installed."""

from __future__ import annotations

import importlib.util
import time

import torch

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.engine import _run
from benchmarks.gpu.random_model import QWEN3_600M, TINY

NUM_SEQUENCES, PROMPT, OUTPUT = 64, 256, 128


def _transformers_rate(count: int, prompt: int, output: int) -> float:
    """Tokens per second of `generate` with its own best settings for one static batch."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    shape = QWEN3_600M
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
    with torch.device("cuda"):
        make = AutoModelForCausalLM.from_config
        model = make(config, dtype=torch.bfloat16).eval()  # type: ignore[no-untyped-call]
    ids = torch.randint(1, 100_000, (count, prompt), device="cuda")

    def generate(tokens: int) -> None:
        model.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, temperature=0.6, pad_token_id=0
        )
        torch.cuda.synchronize()

    generate(8)
    started = time.perf_counter()
    generate(output)
    return count * output / (time.perf_counter() - started)


def main() -> None:
    bench = Bench("peer")
    count, prompt, output = (2, 8, 4) if bench.smoke else (NUM_SEQUENCES, PROMPT, OUTPUT)
    config = TINY if bench.smoke else QWEN3_600M
    load = [([(7 * row + at) % 90 + 1 for at in range(prompt)], output) for row in range(count)]
    ran = _run(bench, config, load)
    ours = ran.num_tokens / ran.took_s
    bench.add(Row(f"0.6B, {count} sequences", ours, "tokens/s"))
    name = f"beside transformers, {count} sequences"
    if bench.smoke or importlib.util.find_spec("transformers") is None:
        why = "smoke" if bench.smoke else "transformers is not installed here"
        bench.add(Row(name, None, "x", 3.0, note=why))
        return
    theirs = _transformers_rate(count, prompt, output)
    bench.add(Row(name, ours / theirs, "x", 3.0, note=f"{theirs:.0f} tokens/s"))


if __name__ == "__main__":
    main()
