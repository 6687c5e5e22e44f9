"""Time of attention over a KV cache: prefill chunks and decode batches of one layer, on one rank. Knows no model.

FLOPs and bytes follow FlashAttention (Dao 2022): scores never leave the chip, so prefill moves Q, K, V and O once and
decode moves the whole KV once per step.
"""

from dataclasses import dataclass

from headrace_worker.perf.cards import Card
from headrace_worker.perf.gemm import blended

ATTENTION_COMPUTE = "fp16"
QUERY_BYTES = 2
DIAGONAL_TILE = 128


@dataclass(frozen=True)
class AttentionEfficiency:
    """Fractions of the published peaks and fixed costs in seconds, of the kernels at one KV precision."""

    prefill_launch_s: float
    prefill_serial_s_per_token: float
    prefill_compute: float
    prefill_memory: float
    decode_launch_s: float
    decode_s_per_row: float
    decode_serial_s_per_token: float
    decode_memory: float


@dataclass(frozen=True)
class Heads:
    """Heads of one rank and bytes per stored KV number."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_bytes: float


@dataclass(frozen=True)
class Prefill:
    """`num_tokens` new queries on top of `num_cached` keys; each sees itself and all before, or the last `window`."""

    num_tokens: int
    num_cached: int = 0
    window: int | None = None

    @property
    def longest(self) -> int:
        """Keys that the last query sees."""
        keys = self.num_cached + self.num_tokens
        return keys if self.window is None else min(keys, self.window)

    @property
    def num_keys(self) -> int:
        """Keys that some query sees."""
        keys = self.num_cached + self.num_tokens
        return keys if self.window is None else min(keys, self.window + self.num_tokens)

    @property
    def num_pairs(self) -> float:
        """(query, key) pairs scored."""
        growing = self.num_tokens
        if self.window is not None:
            growing = min(max(self.window - self.num_cached, 0), self.num_tokens)
        pairs = growing * self.num_cached + growing * (growing + 1) / 2
        return pairs + (self.num_tokens - growing) * (self.window or 0)


def prefill_flops(prefill: Prefill, heads: Heads) -> float:
    """Both products, causal: QK^T and PV over the keys that each query sees."""
    return 4.0 * heads.num_heads * heads.head_dim * prefill.num_pairs


def prefill_bytes(prefill: Prefill, heads: Heads) -> float:
    """Queries and outputs once, keys and values once."""
    rows = 2 * prefill.num_tokens * heads.num_heads * QUERY_BYTES
    keys = 2 * prefill.num_keys * heads.num_kv_heads * heads.kv_bytes
    return heads.head_dim * (rows + keys)


def prefill_time_s(prefills: tuple[Prefill, ...], heads: Heads, card: Card, efficiency: AttentionEfficiency) -> float:
    """Seconds of one varlen launch over all chunks; 0 when there are none."""
    chunks = [chunk for chunk in prefills if chunk.num_tokens > 0]
    if not chunks:
        return 0.0
    # Tiles on the causal diagonal are computed whole.
    diagonal = 2.0 * heads.num_heads * heads.head_dim * DIAGONAL_TILE * sum(chunk.num_tokens for chunk in chunks)
    flops = diagonal + sum(prefill_flops(chunk, heads) for chunk in chunks)
    num_bytes = sum(prefill_bytes(chunk, heads) for chunk in chunks)
    longest = max(chunk.longest for chunk in chunks)
    return (
        efficiency.prefill_launch_s
        + efficiency.prefill_serial_s_per_token * longest
        + flops / (efficiency.prefill_compute * card.peak_flops(ATTENTION_COMPUTE))
        + num_bytes / (efficiency.prefill_memory * card.memory_bandwidth)
    )


def decode_bytes(num_sequences: int, num_context_tokens: float, heads: Heads) -> float:
    """The KV of every context once; queries and outputs of one token each."""
    keys = 2 * num_context_tokens * heads.num_kv_heads * heads.kv_bytes
    return heads.head_dim * (keys + 2 * num_sequences * heads.num_heads * QUERY_BYTES)


def decode_flops(num_context_tokens: float, heads: Heads) -> float:
    """Both products of one query per sequence."""
    return 4.0 * heads.num_heads * heads.head_dim * num_context_tokens


def decode_time_s(
    num_sequences: int, num_context_tokens: float, heads: Heads, card: Card, efficiency: AttentionEfficiency
) -> float:
    """Seconds for one query of each of `num_sequences`, whose contexts sum to `num_context_tokens`."""
    if num_sequences == 0:
        return 0.0
    num_bytes = decode_bytes(num_sequences, num_context_tokens, heads)
    serial_s = efficiency.decode_serial_s_per_token * num_context_tokens / num_sequences
    compute_s = decode_flops(num_context_tokens, heads) / (
        efficiency.prefill_compute * card.peak_flops(ATTENTION_COMPUTE)
    )
    memory_s = max(num_bytes / (efficiency.decode_memory * card.memory_bandwidth), compute_s)
    rows_s = efficiency.decode_s_per_row * num_sequences * heads.num_kv_heads
    return efficiency.decode_launch_s + rows_s + blended(memory_s, serial_s, 2.0)
