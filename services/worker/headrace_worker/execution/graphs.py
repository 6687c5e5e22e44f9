"""Steps of decodes alone, captured once per batch size and replayed: the host launches one thing instead of hundreds.

    inputs of a step -> static buffers, padded to a bucket -> replay -> logits of the real rows

Inputs keep their place, so the buffers are what a graph reads. What captures is behind `Capture`: on CPU it captures
nothing and computes each time, which is the twin that tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from headrace_worker.attention.base import DecodeBatch, KvPages
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.decode_buckets import bucket_of, bucket_sizes
from headrace_worker.execution.inputs import StepInputs
from headrace_worker.execution.loaded import Loaded

MOST_CAPTURED = 512
"""Sequences; with more of them a step is long enough to hide its launches."""

Replay: TypeAlias = Callable[[], Tensor]
Capture: TypeAlias = Callable[[Replay], Replay]


def eager(compute: Replay) -> Replay:
    """Captures nothing."""
    return compute


def captures_decodes(config: WorkerConfig) -> bool:
    """One GPU whose pages stay in it: collectives and exports of pages are not captured."""
    return config.graphs and config.device == "cuda" and config.tp * config.pp == 1 and config.role == "both"


class CudaCapture:
    """All graphs share one pool of memory: they run one after another, the largest is captured first."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Replay) -> Replay:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()  # kernels are compiled and libraries make their workspaces outside of the capture
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class StaticInputs:
    """Buffers of the largest bucket. A bucket's tensors are the first rows of them."""

    def __init__(self, most_sequences: int, most_pages: int, page_tokens: int, device: torch.device) -> None:
        self.page_tokens, self.most_pages = page_tokens, most_pages
        self._pinned = device.type == "cuda"
        self.ids_S = torch.zeros(most_sequences, dtype=torch.int64, device=device)
        self.positions_S = torch.zeros_like(self.ids_S)
        self.slots_S = torch.zeros_like(self.ids_S)
        self.kv_lens_S = torch.zeros(most_sequences, dtype=torch.int32, device=device)
        self.table_SP = torch.zeros(most_sequences, most_pages, dtype=torch.int32, device=device)

    def batch(self, bucket: int) -> DecodeBatch:
        """What attention of a bucket reads."""
        most_tokens = self.most_pages * self.page_tokens
        return DecodeBatch(self.table_SP[:bucket], self.kv_lens_S[:bucket], self.slots_S[:bucket], most_tokens)

    def fill(self, inputs: StepInputs, bucket: int) -> None:
        """A step's rows, then padding: id 0 at position 0, length 0, the null slot. Columns behind a table stay old."""
        num_padding = bucket - len(inputs.token_ids)
        assert num_padding >= 0 and set(inputs.query_lens) == {1}, "decodes alone, no more than the bucket holds"
        padding = [0] * num_padding
        wide = self._host([inputs.token_ids + padding, inputs.positions + padding, inputs.slots + padding], torch.int64)
        for target, source in zip((self.ids_S, self.positions_S, self.slots_S), wide, strict=True):
            target[:bucket].copy_(source, non_blocking=True)
        self.kv_lens_S[:bucket].copy_(self._host(inputs.kv_lens + padding, torch.int32), non_blocking=True)
        num_pages = max(len(table) for table in inputs.page_tables)
        tables = [table + (0,) * (num_pages - len(table)) for table in inputs.page_tables]
        self.table_SP[: len(tables), :num_pages].copy_(self._host(tables, torch.int32), non_blocking=True)

    def _host(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, pin_memory=self._pinned)


class DecodeGraphs:
    """`usable` says whether the backend can be captured at all. `sizes` are the buckets, if not the usual ones."""

    def __init__(
        self,
        loaded: Loaded,
        kv: Sequence[KvPages],
        static: StaticInputs,
        capture: Capture,
        sizes: tuple[int, ...] | None = None,
    ) -> None:
        self._loaded, self._kv, self._static = loaded, kv, static
        self._sizes = bucket_sizes(len(static.ids_S)) if sizes is None else sizes
        self._replays: dict[int, Replay] = {}
        for size in reversed(self._sizes):
            self._replays[size] = capture(self._compute(size))

    @staticmethod
    def usable(loaded: Loaded, kv: Sequence[KvPages]) -> bool:
        nothing = torch.zeros(1, dtype=torch.int32, device=loaded.device)
        probe = DecodeBatch(nothing[None], nothing, nothing.to(torch.int64), 1)
        return loaded.attention.begin_decodes(probe, kv, 1.0) is not None

    def serves(self, inputs: StepInputs) -> bool:
        """Decodes alone, in a number that was captured."""
        return (
            set(inputs.query_lens) == {1}
            and bucket_of(len(inputs.query_lens), self._sizes) is not None
            and max(len(table) for table in inputs.page_tables) <= self._static.most_pages
        )

    def run(self, inputs: StepInputs, fill_in: Callable[[Tensor], Tensor]) -> Tensor:
        """float32 logits [R, V] of the rows that draw, a copy. `fill_in` puts ids that only the device knows."""
        bucket = bucket_of(len(inputs.query_lens), self._sizes)
        assert bucket is not None, "asked for what it does not serve"
        self._static.fill(inputs, bucket)
        fill_in(self._static.ids_S)
        logits_SV = self._replays[bucket]()
        rows = self._static._host(inputs.sample_rows, torch.int64).to(logits_SV.device, non_blocking=True)
        return logits_SV[rows]

    def _compute(self, bucket: int) -> Replay:
        model, static = self._loaded.model, self._static
        step = self._loaded.attention.begin_decodes(static.batch(bucket), self._kv, model.config.attention_scale)
        assert step is not None, "checked by `usable`"

        def compute() -> Tensor:
            hidden_SE = model(static.ids_S[:bucket], static.positions_S[:bucket], step)
            return model.compute_logits(hidden_SE)

        return compute


def capture_decodes(config: WorkerConfig, loaded: Loaded, kv: Sequence[KvPages]) -> DecodeGraphs | None:
    """None where the backend of attention cannot be captured."""
    if not DecodeGraphs.usable(loaded, kv):
        return None
    most_tokens = min(config.max_context or loaded.model.config.max_position, loaded.model.config.max_position)
    most_sequences = min(config.max_running, MOST_CAPTURED)
    most_pages = -(-most_tokens // config.page_tokens)
    static = StaticInputs(most_sequences, most_pages, config.page_tokens, loaded.device)
    return DecodeGraphs(loaded, kv, static, CudaCapture())
