"""Decode steps of the Llama-3.1-8B shape against the floor of reading: weights less embedding, and KV, once each.

As captured graphs, which is how they are served, and eagerly beside that.
"""

from __future__ import annotations

import time

import torch

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.random_model import LLAMA_8B, TINY, load_random, settings_of
from headrace_worker.attention.base import AttentionBatch
from headrace_worker.execution.graphs import CudaCapture, DecodeGraphs, StaticInputs, eager
from headrace_worker.execution.inputs import StepInputs
from headrace_worker.execution.kv_cache import KvCache, KvLayout
from headrace_worker.execution.loaded import Loaded

PAGE = 16
_SPARE_BYTES = 6 * 1024**3


def _inputs(batch: int, context: int) -> StepInputs:
    """Every sequence has pages of its own; the last slot of the context is written."""
    num_pages = -(-context // PAGE)
    tables = [tuple(range(1 + row * num_pages, 1 + (row + 1) * num_pages)) for row in range(batch)]
    at = context - 1
    slots = [table[at // PAGE] * PAGE + at % PAGE for table in tables]
    rows = list(range(batch))
    return StepInputs(
        [7] * batch, [at] * batch, slots, [1] * batch, [context] * batch, tables, rows, rows, [0] * batch, [], []
    )


class _Cell:
    """One batch at one context, on pages that are there already."""

    def __init__(self, bench: Bench, loaded: Loaded, cache: KvCache, batch: int, context: int) -> None:
        self.bench, self.loaded, self.cache = bench, loaded, cache
        self.inputs = _inputs(batch, context)
        static = StaticInputs(batch, -(-context // PAGE), PAGE, bench.device)
        capture = eager if bench.smoke else CudaCapture()
        self.graphs = DecodeGraphs(loaded, cache.layers, static, capture, sizes=(batch,))

    def captured(self) -> torch.Tensor:
        return self.graphs.run(self.inputs, lambda ids_S: ids_S)

    def differs_from_eager(self) -> float:
        """Of the logits' own size: bfloat16 adds up differently in other splits of the keys."""
        captured, eagerly = self.captured().double(), self.eagerly().double()
        return float((captured - eagerly).norm() / eagerly.norm())

    def eagerly(self) -> torch.Tensor:
        inputs, device = self.inputs, self.bench.device
        batch = AttentionBatch(
            tuple(inputs.query_lens),
            tuple(inputs.kv_lens),
            PAGE,
            torch.tensor(inputs.page_tables, dtype=torch.int32).to(device),
            torch.tensor(inputs.slots).to(device),
        )
        model = self.loaded.model
        step = self.loaded.attention.begin(batch, self.cache.layers, model.config.attention_scale)
        ids, positions = torch.tensor(inputs.token_ids).to(device), torch.tensor(inputs.positions).to(device)
        return model.compute_logits(model(ids, positions, step))


def _host_s(bench: Bench, run: object, times: int = 20) -> float:
    """What the host spends on a step while the device is behind."""
    assert callable(run)
    if not bench.smoke:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(1 if bench.smoke else times):
        run()
    return (time.perf_counter() - started) / (1 if bench.smoke else times)


def _measure(bench: Bench, loaded: Loaded, batch: int, context: int) -> None:
    name = f"8B, batch {batch} at {context}"
    config = loaded.model.config
    layout = KvLayout.of(loaded.model, PAGE, loaded.kv_dtype, bench.device)
    kv_bytes = batch * context * layout.bytes_per_token
    if not bench.smoke and kv_bytes + _SPARE_BYTES > torch.cuda.mem_get_info()[0]:
        bench.add(Row(f"{name}: share of the floor", None, "", note=f"{kv_bytes / 1e9:.0f} GB of KV do not fit"))
        return
    cell = _Cell(bench, loaded, KvCache(layout, batch * -(-context // PAGE)), batch, context)
    apart = cell.differs_from_eager()
    bench.add(Row(f"{name}: a graph's logits beside eager ones", apart, "apart", 0.05, at_most=True))
    taken = bench.seconds_in_a_row(cell.captured)
    read = bench.ceiling("read")
    embedding = loaded.model.model.embed_tokens.weight.nbytes if not config.tie_embeddings else 0
    floor_s = None if read is None else (loaded.weight_bytes - embedding + kv_bytes) / (read * 1e9)
    share = None if floor_s is None else floor_s / taken
    target = 0.75 if batch in (1, 64) else None
    bench.add(Row(f"{name}: share of the floor", share, "", target, note=f"{taken * 1e3:.2f} ms a step"))
    bench.add(Row(f"{name}: host time of a graph's step", _host_s(bench, cell.captured) * 1e6, "us"))
    bench.add(Row(f"{name}: eager beside graph", bench.seconds_in_a_row(cell.eagerly, 5) / taken, "x"))


def main() -> None:
    bench = Bench("decode")
    loaded = load_random(TINY if bench.smoke else LLAMA_8B, settings_of(bench.device, attention="triton"))
    # Those with a target first.
    cells = [(2, 20)] if bench.smoke else [(b, c) for b in (64, 1, 8, 256) for c in (1024, 8192)]
    for batch, context in cells:
        with bench.part(f"8B, batch {batch} at {context}"):
            _measure(bench, loaded, batch, context)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
