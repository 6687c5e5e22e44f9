"""A tiny Llama of 8 query and 4 KV heads in 4 layers, and runners over it with any layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from headrace_worker.execution.torch_runner import TorchRunner
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.models.tiny import TINY, TOKENIZER, VOCAB_SIZE, tiny_tensors

SIZES: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
}


def write_model(directory: Path, family: str = "llama", **sizes: Any) -> Path:
    """A complete checkpoint directory."""
    config = {**TINY[family], **SIZES, **sizes}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    save_file(tiny_tensors(config), directory / "model.safetensors")
    return directory


@contextmanager
def group(source: Path, tp: int, pp: int = 1, **settings: Any) -> Iterator[TorchRunner]:
    """A warmed-up runner whose ranks are gone afterwards."""
    runner = load(source, source.parent, tp=tp, pp=pp, **settings)
    try:
        yield runner
    finally:
        runner.shut()


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(7 * index + 3 + salt * 11) % (VOCAB_SIZE - 1) for index in range(length)]


def rank_pids(runner: TorchRunner) -> list[int]:
    """Of the ranks beside the leader, in their order."""
    ranks = runner._steps._ranks  # type: ignore[attr-defined]
    return [rank.process.pid for rank in ranks._ranks]


def answers(runner: TorchRunner) -> list[Any]:
    """Everything that can differ: batches, chunks, choices, seeds, penalties, logprobs rounded, a prefix hit."""
    bench = EngineBench(runner, max_chunk_tokens=32)
    plain = [bench.submit(prompt(5 + 9 * salt, salt), 12) for salt in range(5)]
    long = bench.submit(prompt(64), 6, n=2, temperature=0.9, seed=11)
    edited = bench.submit(prompt(9, 3), 10, repetition_penalty=1.3, banned_ids=frozenset({2, 57}))
    asked = bench.submit(prompt(20, 1), 8, logprobs=True, num_logprobs=2)
    bench.run()
    again = bench.submit(prompt(64), 6, temperature=0.9, seed=11)
    bench.run()
    assert bench.accepted(again).cached_tokens == 63
    handles = [*plain, long, long + 1, edited, asked, again]
    chances = [round(entry.logprob, 4) for entry in bench.logprobs(asked)]
    return [*(bench.ids(handle) for handle in handles), chances]
