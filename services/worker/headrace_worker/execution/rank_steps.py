"""One rank's part of every step: its layers over its pages, and, on one rank of a group, the drawing of tokens.

Alone it is a whole engine's. Knows no grammar and no process; its peers are behind `Collectives`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBatch
from headrace_worker.config import WorkerConfig
from headrace_worker.execution.device_copy import upload
from headrace_worker.execution.exports import Exports, make_image
from headrace_worker.execution.graphs import DecodeGraphs, capture_decodes, captures_decodes
from headrace_worker.execution.inputs import StepInputs, flatten
from headrace_worker.execution.kv_cache import KvCache, KvLayout
from headrace_worker.execution.loaded import Loaded
from headrace_worker.execution.memory import kv_budget, measure_held, measure_peak
from headrace_worker.execution.row_draws import select_draws
from headrace_worker.execution.runner import OnPages
from headrace_worker.execution.sampler import Draw, Sampler
from headrace_worker.execution.steps import Drawn, MaskSource, RankSizes, Steps
from headrace_worker.parallel.collectives import Collectives
from headrace_worker.parallel.place import ALONE
from headrace_worker.scheduling.plan import NULL_PAGE, Plan
from headrace_worker.transfer.image import ImageRef


class _Begun(NamedTuple):
    """A step whose logits are there or on their way; overlapped, its tokens too."""

    inputs: StepInputs
    logits_RV: Tensor
    masks: MaskSource
    draw: Draw | None


class _Drawing(NamedTuple):
    """Tokens that a step draws, on this rank's device: the next step may read them there."""

    handles: list[int]
    ids_R: Tensor


class RankSteps(Steps):
    """`group` is None where one rank is the whole engine."""

    def __init__(self, config: WorkerConfig, loaded: Loaded, group: Collectives | None = None) -> None:
        self._config, self._loaded, self._group = config, loaded, group
        self.place = group.place if group is not None else ALONE
        self._layout = KvLayout.of(loaded.model, config.page_tokens, loaded.kv_dtype, loaded.device)
        self._sampler = Sampler(
            loaded.model.config.vocab_size,
            loaded.end_token_ids,
            loaded.device,
            select_draws(loaded.attention.row_kernels),
        )
        self._begun: deque[_Begun] = deque()
        self._overlaps = config.overlaps
        # Of the step begun last: placeholders of the next one read it.
        self._drawing: _Drawing | None = None
        self._cache: KvCache | None = None
        self._workspace_bytes = 0
        self._exports = Exports(loaded.model, self.place)
        self._graphs: DecodeGraphs | None = None
        self._graph_bytes: int | None = None

    def allocate(self, num_pages: int) -> None:
        self._cache = self._graphs = None
        image = None
        if self._config.role != "both":
            dtype = str(self._layout.dtype).removeprefix("torch.")
            image = make_image(self._loaded.model, dtype, self._config.page_tokens, self.place, num_pages)
        self._cache = KvCache(self._layout, num_pages, image)
        if self._graph_bytes is not None:
            self._graphs = capture_decodes(self._config, self._loaded, self._cache.layers)

    @property
    def num_layers(self) -> int:
        """Of the whole model."""
        return self._loaded.model.config.num_layers

    def images(self) -> list[ImageRef]:
        image = self._cache.image if self._cache is not None else None
        return [] if image is None else [image.ref]

    def watch_pages(self, on_pages: OnPages) -> None:
        self._exports.on_pages = on_pages

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with measure_peak(self._loaded.device) as peak:
            yield
        self._workspace_bytes = peak.num_bytes

    def sizes(self) -> list[RankSizes]:
        if captures_decodes(self._config) and self._graph_bytes is None and self._cache is not None:
            with measure_held(self._loaded.device) as held:
                self._graphs = capture_decodes(self._config, self._loaded, self._cache.layers)
            self._graph_bytes = held.num_bytes
            self._workspace_bytes += self._graph_bytes
            self._graphs = None  # until the pages are there that they are to read
        budget = kv_budget(self._loaded.device, self._config.kv_bytes, self._workspace_bytes)
        return [RankSizes(self._loaded.weight_bytes, self._workspace_bytes, self._layout.bytes_per_page, budget)]

    def logits(self, plan: Plan) -> Tensor:
        return self._compute(plan, flatten(plan, self._config.page_tokens))

    def begin(self, plan: Plan, masks: MaskSource) -> None:
        if self.place.draws:
            self._sampler.release(plan.released)
            for request in plan.admitted:
                self._sampler.admit(request)
        inputs = flatten(plan, self._config.page_tokens)
        logits_RV = self._compute(plan, inputs)
        draw = self._draw_ahead(inputs, logits_RV, masks) if self._overlaps else None
        self._begun.append(_Begun(inputs, logits_RV, masks, draw))

    def end(self) -> Drawn:
        """Masks are computed beside the forward pass and wanted only now."""
        inputs, logits_RV, masks, draw = self._begun.popleft()
        if not self.place.draws or not len(logits_RV):
            return Drawn([])
        started_s = time.perf_counter()
        if draw is None:
            draw = self._sampler.draw(logits_RV, inputs.sample_handles, inputs.sample_indices, masks())
        rows = draw.take()
        return Drawn(rows, time.perf_counter() - started_s)

    def close(self) -> None:
        """Nothing was started."""

    def _compute(self, plan: Plan, inputs: StepInputs) -> Tensor:
        """float32 logits [R, V] on the rank that draws; others have nothing to show."""
        cache, group, device = self._cache, self._group, self._loaded.device
        assert cache is not None, "warm-up allocates the pages"
        started_s = time.perf_counter()
        cache.load(plan.imports)
        cache.copy(plan.copies)
        if self._graphs is not None and self._graphs.serves(inputs):
            return self._graphs.run(inputs, lambda ids_S: self._fill_in(ids_S, inputs))
        model = self._loaded.model
        batch = _attention_batch(inputs, self._config.page_tokens, device)
        step = self._loaded.attention.begin(batch, cache.layers, model.config.attention_scale)
        positions_T = upload(inputs.positions, torch.int64, device)
        if group is None or self.place.is_first_stage:
            x = self._fill_in(upload(inputs.token_ids, torch.int64, device), inputs)
        else:
            waited_s = time.perf_counter()
            x = group.take_over((len(inputs.token_ids), model.config.hidden_size), self._loaded.dtype)
            started_s += time.perf_counter() - waited_s
        with self._exports.watching(plan, cache):
            hidden_RE = model(x, positions_T, step, self._wanted_rows(inputs))
        logits_RV = self._read_out(hidden_RE)
        if group is not None:
            group.recorder.add_busy(time.perf_counter() - started_s)
            if not self.place.is_last_stage:
                group.hand_on(hidden_RE)
        return logits_RV

    def _draw_ahead(self, inputs: StepInputs, logits_RV: Tensor, masks: MaskSource) -> Draw | None:
        """Overlapped, a step draws at once, and every rank of the group has its tokens."""
        draw, handles = None, inputs.sample_handles
        self._drawing = None
        if handles:
            if self.place.draws:
                draw = self._sampler.draw(logits_RV, handles, inputs.sample_indices, masks())
                ids_R = draw.ids_R
            else:
                ids_R = torch.empty(len(handles), dtype=torch.int64, device=self._loaded.device)
            self._drawing = _Drawing(handles, ids_R if self._group is None else self._group.broadcast(ids_R))
        return draw

    def _fill_in(self, ids_T: Tensor, inputs: StepInputs) -> Tensor:
        """Tokens that the step before has drawn and the host has not seen: from device to device."""
        if not inputs.placeholder_rows:
            return ids_T
        before = self._drawing
        assert before is not None, "a placeholder without a step before it: this rank does not overlap"
        place = {handle: index for index, handle in enumerate(before.handles)}
        drawn_R = upload([place[handle] for handle in inputs.placeholder_handles], torch.int64, ids_T.device)
        ids_T[upload(inputs.placeholder_rows, torch.int64, ids_T.device)] = before.ids_R[drawn_R]
        return ids_T

    def _wanted_rows(self, inputs: StepInputs) -> Tensor | None:
        """Those that draw; None where these are all, as in a step of decodes, or another stage reads all of them."""
        if not self.place.is_last_stage or inputs.sample_rows == list(range(len(inputs.token_ids))):
            return None
        return upload(inputs.sample_rows, torch.int64, self._loaded.device)

    def _read_out(self, hidden_RE: Tensor) -> Tensor:
        model = self._loaded.model
        if not self.place.is_last_stage or not len(hidden_RE):
            return hidden_RE.new_empty((0, model.config.vocab_size), dtype=torch.float32)
        return model.compute_logits(hidden_RE)


def _attention_batch(inputs: StepInputs, page_tokens: int, device: torch.device) -> AttentionBatch:
    num_pages = max(len(table) for table in inputs.page_tables)
    padded = [table + (NULL_PAGE,) * (num_pages - len(table)) for table in inputs.page_tables]
    return AttentionBatch(
        query_lens=tuple(inputs.query_lens),
        kv_lens=tuple(inputs.kv_lens),
        page_size=page_tokens,
        page_table_SP=upload(padded, torch.int32, device),
        slots_T=upload(inputs.slots, torch.int64, device),
    )
