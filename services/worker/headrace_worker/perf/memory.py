"""Bytes on each device: weights, KV cache, workspace, and how many full-length reservations fit. Knows no times.

Sliding-window layers keep all their pages: the window masks and does not free.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from headrace_worker.perf.cards import Card
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.precision import Precision

PAGE_TOKENS = 16
ACTIVATION_BYTES = 2
# A CUDA context with loaded kernels, NCCL channel buffers, graph pools: what remains when no tensor is live.
DEVICE_FLOOR_BYTES = 1 << 30
CPU_FLOOR_BYTES = 1 << 28


@dataclass(frozen=True)
class StepShape:
    """The largest step a replica is sized for: tokens computed and sequences sampled."""

    max_tokens: int = 8192
    max_sequences: int = 256


@dataclass(frozen=True)
class DeviceMemory:
    """One rank's budget in bytes. `pool_bytes` may be negative: then the weights and the reserve alone do not fit."""

    stage: int
    memory_bytes: int
    weight_bytes: int
    reserve_bytes: int
    kv_bytes_per_sequence: int

    @property
    def pool_bytes(self) -> int:
        """What is left for KV pages."""
        return self.memory_bytes - self.weight_bytes - self.reserve_bytes

    @property
    def full_reservations(self) -> int:
        """Full-length sequences whose whole future fits."""
        return max(0, self.pool_bytes // self.kv_bytes_per_sequence)


def kv_bytes_per_token(shape: ModelShape, kv: Precision) -> int:
    """Key and value bytes of one token over all layers and devices, without replication."""
    return math.ceil(2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * kv.num_bytes)


def kv_bytes_per_sequence(shape: ModelShape, kv: Precision, num_tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """KV bytes of a sequence of `num_tokens`, in whole pages."""
    if num_tokens < 1:
        raise PerfError("context", f"must be at least 1 token, not {num_tokens}")
    return kv_bytes_per_token(shape, kv) * _whole_pages(num_tokens, page_tokens)


def weight_bytes(shape: ModelShape, precision: Precision) -> int:
    """Nominal bytes of all weights: advertised parameters x bits / 8."""
    return math.ceil(shape.advertised_params * precision.bits / 8)


def device_weight_bytes(shape: ModelShape, precision: Precision, layout: Layout, stage: int) -> int:
    """Weight bytes of one rank of `stage`: its layers, the input matrix on the first stage, the output one on the last.

    Matrices are split by the tensor degree; norm weights are replicated. Scaled to the advertised parameter count.
    """
    layers = layout.stage_layers(shape)[stage]
    first, last = stage == 0, stage == layout.pipeline - 1
    num_vocab_matrices = int(first) + int(last)
    if shape.tied_embeddings and first and last:
        num_vocab_matrices = 1
    split = layers * (shape.attention_params + shape.mlp_params) + num_vocab_matrices * shape.embedding_params
    replicated = layers * shape.layer_vector_params + (shape.hidden_size if last else 0)
    params = Fraction(split, layout.tensor) + replicated
    return math.ceil(params * Fraction(precision.bits) / 8 * Fraction(shape.advertised_params, shape.num_params))


def device_kv_bytes_per_token(shape: ModelShape, kv: Precision, layout: Layout, stage: int) -> int:
    """KV bytes of one token on one rank of `stage`; replicated heads count on every rank that holds them."""
    width = 2 * layout.kv_heads_per_rank(shape) * shape.head_dim
    return math.ceil(layout.stage_layers(shape)[stage] * width * kv.num_bytes)


def workspace_bytes(shape: ModelShape, layout: Layout, card: Card, step: StepShape) -> int:
    """Estimated peak of what is neither weight nor KV on one rank; the engine measures the true value in warm-up.

    Live at once in the widest moment of a layer: residual and its normed copy, the gate-and-up output and its
    product; then float32 logits of the sampled rows with two copies for the sampler; one buffer per collective;
    the device floor.
    """
    mlp_width = shape.intermediate_size * (3 if shape.gated_mlp else 2) / layout.tensor
    activations = step.max_tokens * (2 * shape.hidden_size + max(mlp_width, shape.qkv_out / layout.tensor))
    logits = 4 * 3 * step.max_sequences * shape.vocab_size
    collectives = step.max_tokens * shape.hidden_size if layout.tensor > 1 else 0
    floor = CPU_FLOOR_BYTES if card.is_measured else DEVICE_FLOOR_BYTES
    return math.ceil(ACTIVATION_BYTES * (activations + collectives) + logits + floor)


@dataclass(frozen=True)
class MemoryDemand:
    """What one replica must hold: the model at its precisions, and sequences of up to `max_sequence_tokens`."""

    shape: ModelShape
    weights: Precision
    kv: Precision
    max_sequence_tokens: int
    page_tokens: int = PAGE_TOKENS

    def per_device(self, card: Card, layout: Layout, reserve_bytes: int) -> tuple[DeviceMemory, ...]:
        """The budget of one rank of each stage; ranks of a stage are alike. The pool of the replica is the smallest."""
        tokens = _whole_pages(self.max_sequence_tokens, self.page_tokens)
        return tuple(
            DeviceMemory(
                stage=stage,
                memory_bytes=card.memory_bytes,
                weight_bytes=device_weight_bytes(self.shape, self.weights, layout, stage),
                reserve_bytes=reserve_bytes,
                kv_bytes_per_sequence=tokens * device_kv_bytes_per_token(self.shape, self.kv, layout, stage),
            )
            for stage in range(layout.pipeline)
        )

    def full_reservations(self, card: Card, layout: Layout, reserve_bytes: int) -> int:
        """Full-length sequences that fit at once: the minimum over all ranks."""
        return min(device.full_reservations for device in self.per_device(card, layout, reserve_bytes))


def _whole_pages(num_tokens: int, page_tokens: int) -> int:
    return math.ceil(num_tokens / page_tokens) * page_tokens
