"""What one engine step costs a replica: FLOPs, bytes, collective bytes, seconds, and which resource binds.

Knows nothing about scheduling or host time: the device is assumed never to wait for its host.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace_worker.perf import attention as attn
from headrace_worker.perf.cards import Card
from headrace_worker.perf.collectives import all_reduce_bytes, all_reduce_time_s, send_time_s
from headrace_worker.perf.efficiency import Efficiency, efficiency_of
from headrace_worker.perf.gemm import Gemm, elementwise_time_s, gemm_time_s
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.pipeline import pipelined_time_s
from headrace_worker.perf.precision import Precision
from headrace_worker.perf.resources import OpCost, StepCost

ACTIVATION_BYTES = 2
LOGIT_BYTES = 4
NUM_SAMPLER_PASSES = 4


@dataclass(frozen=True)
class StepLoad:
    """What one step computes: chunks of prompts, and one token each of `num_decodes` sequences.

    `num_context_tokens` is the sum of the decoding sequences' contexts.
    """

    prefills: tuple[attn.Prefill, ...] = ()
    num_decodes: int = 0
    num_context_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Rows of every matrix product."""
        return self.num_decodes + sum(chunk.num_tokens for chunk in self.prefills)

    @property
    def num_sampled(self) -> int:
        """Rows of the output product, taking every chunk as its prompt's last."""
        return self.num_decodes + len(self.prefills)


@dataclass(frozen=True)
class Roofline:
    """One replica: a model at its precisions on a layout of cards. `layout.check(shape)` must have passed."""

    shape: ModelShape
    weights: Precision
    kv: Precision
    card: Card
    layout: Layout

    @property
    def efficiency(self) -> Efficiency:
        """Constants of this replica's card."""
        return efficiency_of(self.card)

    def step(self, load: StepLoad) -> StepCost:
        """The cost of one step whose tokens pass the stages as one microbatch."""
        return StepCost(tuple(op for ops in self._stages(load) for op in ops), num_stages=self.layout.pipeline)

    def stage_times_s(self, load: StepLoad) -> tuple[float, ...]:
        """Seconds of one microbatch in each stage."""
        return tuple(sum(op.time_s for op in ops) for ops in self._stages(load))

    def step_time_s(self, load: StepLoad) -> float:
        """Seconds of one step as one microbatch."""
        return pipelined_time_s(self.stage_times_s(load), 1)

    def _stages(self, load: StepLoad) -> Iterator[list[OpCost]]:
        layer = tuple(self.layer(load))
        for stage, num_layers in enumerate(self.layout.stage_layers(self.shape)):
            ops = [op.times(num_layers) for op in layer]
            if stage == self.layout.pipeline - 1:
                ops.extend(self.output(load))
            else:
                ops.append(self.send(load))
            yield ops

    def layer(self, load: StepLoad) -> Iterator[OpCost]:
        """Operations of one layer on one rank, in order (windows averaged over the layers)."""
        shape, tensor, rows = self.shape, self.layout.tensor, load.num_tokens
        heads = self._heads()
        attention_width = heads.num_heads * heads.head_dim
        qkv_width = attention_width + 2 * heads.num_kv_heads * heads.head_dim
        mlp_width = shape.intermediate_size // tensor
        yield self._elementwise("norm", 4 * rows * shape.hidden_size)
        yield self._gemm("qkv", rows, qkv_width, shape.hidden_size)
        yield self._elementwise("rope", 2 * rows * qkv_width)
        yield self._elementwise("kv_write", 4 * rows * heads.num_kv_heads * heads.head_dim)
        yield from self._attention(load, heads)
        yield self._gemm("attention_out", rows, shape.hidden_size, attention_width)
        yield self._all_reduce("attention_all_reduce", rows)
        yield self._elementwise("norm", 4 * rows * shape.hidden_size)
        up_width = mlp_width * (2 if shape.gated_mlp else 1)
        yield self._gemm("mlp_up", rows, up_width, shape.hidden_size)
        yield self._elementwise("activation", rows * (up_width + mlp_width))
        yield self._gemm("mlp_down", rows, shape.hidden_size, mlp_width)
        yield self._all_reduce("mlp_all_reduce", rows)

    def output(self, load: StepLoad) -> Iterator[OpCost]:
        """Final norm, output matrix (kept at 16 bits or more, as quantized checkpoints do) and the sampler's passes."""
        rows, width = load.num_sampled, -(-self.shape.vocab_size // self.layout.tensor)
        yield self._elementwise("norm", 4 * rows * self.shape.hidden_size)
        bits = max(16.0, self.weights.bits)
        compute = "fp32" if self.weights.compute == "fp32" else "fp16"
        yield self._product("output", Gemm(rows, width, self.shape.hidden_size, bits, bits / 8, compute))
        sampler = rows * self.shape.vocab_size * LOGIT_BYTES / ACTIVATION_BYTES
        for _ in range(NUM_SAMPLER_PASSES):
            yield self._elementwise("sampler", sampler)

    def _heads(self) -> attn.Heads:
        shape, layout = self.shape, self.layout
        num_kv_heads = layout.kv_heads_per_rank(shape)
        return attn.Heads(shape.num_heads // layout.tensor, num_kv_heads, shape.head_dim, self.kv.num_bytes)

    def _attention(self, load: StepLoad, heads: attn.Heads) -> Iterator[OpCost]:
        """Mean over the layers: those with a window read and score at most `sliding_window` keys per query."""
        windowed = self.shape.num_window_layers / self.shape.num_layers
        for share, window in ((1 - windowed, None), (windowed, self.shape.sliding_window)):
            if share:
                yield self._prefill_attention(load, heads, window).times(share)
                yield self._decode_attention(load, heads, window).times(share)

    def _prefill_attention(self, load: StepLoad, heads: attn.Heads, window: int | None) -> OpCost:
        chunks = load.prefills
        if window is not None:
            chunks = tuple(replace(chunk, window=window) for chunk in chunks)
        flops = sum(attn.prefill_flops(chunk, heads) for chunk in chunks)
        num_bytes = sum(attn.prefill_bytes(chunk, heads) for chunk in chunks)
        time_s = attn.prefill_time_s(chunks, heads, self.card, self.efficiency.attention(self.kv))
        return self._cost("prefill_attention", time_s, flops, num_bytes, attn.ATTENTION_COMPUTE)

    def _decode_attention(self, load: StepLoad, heads: attn.Heads, window: int | None) -> OpCost:
        tokens = float(load.num_context_tokens)
        if window is not None:
            tokens = min(tokens, float(window * load.num_decodes))
        num_bytes = attn.decode_bytes(load.num_decodes, tokens, heads)
        time_s = attn.decode_time_s(load.num_decodes, tokens, heads, self.card, self.efficiency.attention(self.kv))
        return self._cost(
            "decode_attention", time_s, attn.decode_flops(tokens, heads), num_bytes, attn.ATTENTION_COMPUTE
        )

    def _gemm(self, name: str, m: int, n: int, k: int) -> OpCost:
        compute = self.weights.compute
        if compute == "fp8" and not self.card.has("fp8"):
            compute = "fp16"
        input_bytes = {"fp32": 4, "fp16": 2, "fp8": 1}[compute]
        return self._product(name, Gemm(m, n, k, self.weights.bits, input_bytes, compute))

    def _product(self, name: str, gemm: Gemm) -> OpCost:
        time_s = gemm_time_s(gemm, self.card, self.efficiency.gemm(gemm.compute))
        return self._cost(name, time_s, gemm.flops, gemm.memory_bytes if gemm.m else 0.0, gemm.compute)

    def _elementwise(self, name: str, num_values: float) -> OpCost:
        num_bytes = num_values * ACTIVATION_BYTES
        time_s = elementwise_time_s(num_bytes, self.card, self.efficiency.gemm_wide)
        return self._cost(name, time_s, 0.0, num_bytes, "fp32")

    def _all_reduce(self, name: str, rows: int) -> OpCost:
        num_bytes = rows * self.shape.hidden_size * ACTIVATION_BYTES
        time_s = all_reduce_time_s(num_bytes, self.layout.tensor, self.card, self.efficiency.collective)
        sent = all_reduce_bytes(num_bytes, self.layout.tensor)
        return OpCost(name, time_s, link_bytes=sent, link_s=sent / self.card.link_bandwidth)

    def send(self, load: StepLoad) -> OpCost:
        """Every rank hands the whole hidden states to its counterpart, all ranks at once."""
        num_bytes = load.num_tokens * self.shape.hidden_size * ACTIVATION_BYTES
        time_s = send_time_s(num_bytes, self.card, self.efficiency.collective)
        return OpCost("stage_send", time_s, link_bytes=num_bytes, link_s=num_bytes / self.card.link_bandwidth)

    def _cost(self, name: str, time_s: float, flops: float, num_bytes: float, compute: str) -> OpCost:
        return OpCost(
            name,
            time_s,
            flops=flops,
            memory_bytes=num_bytes,
            compute_s=flops / self.card.peak_flops(compute),
            memory_s=num_bytes / self.card.memory_bandwidth,
        )
