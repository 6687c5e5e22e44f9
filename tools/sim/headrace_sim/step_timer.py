"""How long a step takes, by the roofline, for millions of steps: what repeats is remembered, the rest is arithmetic.

A step is matrix products over all its rows, the output over the rows that sample, and attention. The first two depend
on one whole number each; attention is a closed formula of contexts. Together they are `Roofline.step_time_s`.
"""

from collections.abc import Callable, Sequence

from headrace_worker.perf.attention import Heads, Prefill, decode_time_s, prefill_time_s
from headrace_worker.perf.step import Roofline, StepLoad
from headrace_worker.perf.step_model import StepModel
from headrace_worker.scheduling.plan import Plan

# Below, every number of rows is computed; above, multiples of the grid.
_EXACT_ROWS, _GRID = 256, 64


def load_of(plan: Plan) -> tuple[list[tuple[int, int]], int, int]:
    """What a plan computes: chunks (tokens, tokens before them), decodes, and the keys that these read in all."""
    chunks: list[tuple[int, int]] = []
    num_decodes = num_context = 0
    for row in plan.rows:
        if len(row.token_ids) == 1 and row.samples:
            num_decodes += 1
            num_context += row.start
        else:
            chunks.append((len(row.token_ids), row.start))
    return chunks, num_decodes, num_context + num_decodes


class RowTable:
    """Seconds by number of rows, computed once: of many rows they are smooth, a straight line from one multiple of the
    grid to the next.
    """

    def __init__(self, compute: Callable[[int], float]) -> None:
        self._compute = compute
        self._known: dict[int, float] = {}

    def at(self, num_rows: int) -> float:
        found = self._known.get(num_rows)
        if found is None:
            found = self._known[num_rows] = self._between(num_rows)
        return found

    def _between(self, num_rows: int) -> float:
        before, rest = divmod(num_rows, _GRID)
        if num_rows < _EXACT_ROWS or not rest:
            return self._compute(num_rows)
        low_s, high_s = self.at(before * _GRID), self.at((before + 1) * _GRID)
        return low_s + (high_s - low_s) * rest / _GRID


class FittedTimer:
    """Steps of one replica by the coefficients that it fitted to its own steps, instead of the roofline."""

    def __init__(self, model: StepModel, host_s: float = 0.0) -> None:
        self._model, self._host_s = model, host_s

    def step_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> float:
        """As `StepTimer.step_s`."""
        prefills = tuple(Prefill(num_tokens, num_cached) for num_tokens, num_cached in chunks)
        return self._model.predict(StepLoad(prefills, num_decodes, num_context_tokens)) + self._host_s


class StepTimer:
    """Steps of one replica; `host_s` is added to each for what the host does between steps."""

    def __init__(self, roofline: Roofline, host_s: float = 0.0, slowness: float = 1.0) -> None:
        self._roofline, self._host_s, self._slowness = roofline, host_s, slowness
        shape, layout = roofline.shape, roofline.layout
        self._heads = Heads(
            shape.num_heads // layout.tensor, layout.kv_heads_per_rank(shape), shape.head_dim, roofline.kv.num_bytes
        )
        self._attention = roofline.efficiency.attention(roofline.kv)
        windowed = shape.num_window_layers
        self._spans = [(shape.num_layers - windowed, None), (windowed, shape.sliding_window)]
        self._products = RowTable(self._products_s)
        self._outputs: dict[int, float] = {}

    def step_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> float:
        """Seconds of a step of prompt chunks (tokens, tokens before them) and decodes over so many keys in all."""
        num_rows = num_decodes + sum(num_tokens for num_tokens, _ in chunks)
        seconds = self._products.at(num_rows) + self._output_s(num_decodes + len(chunks))
        seconds += self.attention_s(chunks, num_decodes, num_context_tokens)
        return seconds * self._slowness + self._host_s

    def attention_s(self, chunks: Sequence[tuple[int, int]], num_decodes: int, num_context_tokens: int) -> float:
        """Attention of all layers."""
        heads, card, efficiency, seconds = self._heads, self._roofline.card, self._attention, 0.0
        for num_layers, window in self._spans:
            if not num_layers:
                continue
            context = num_context_tokens if window is None else min(num_context_tokens, window * num_decodes)
            each = decode_time_s(num_decodes, context, heads, card, efficiency)
            if chunks:
                prefills = tuple(Prefill(num_tokens, num_cached, window) for num_tokens, num_cached in chunks)
                each += prefill_time_s(prefills, heads, card, efficiency)
            seconds += num_layers * each
        return seconds

    def _products_s(self, num_rows: int) -> float:
        """All but attention, with one row that samples."""
        return self._without_attention(StepLoad((Prefill(num_rows),)))

    def _output_s(self, num_sampled: int) -> float:
        """What more than one row that samples adds."""
        found = self._outputs.get(num_sampled)
        if found is None:
            more = self._without_attention(StepLoad((), num_sampled, 0))
            less = self._without_attention(StepLoad((Prefill(num_sampled),)))
            found = self._outputs[num_sampled] = more - less
        return found

    def _without_attention(self, load: StepLoad) -> float:
        kinds = ("prefill_attention", "decode_attention")
        return sum(op.time_s for op in self._roofline.step(load).ops if op.name not in kinds)
