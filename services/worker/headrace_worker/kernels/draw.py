"""Drawing one token per row in one launch: temperature, top-k, top-p, min-p, then the largest of logit plus noise.

Thresholds are found on the ordered bits of the scaled logits, four bits a pass, instead of sorting. The noise of a
token comes from Philox (Salmon et al. 2011), keyed by the row and counted by the token, so that a row draws the same
token alone and in any batch. Adding Gumbel noise and taking the largest draws from the softmax (Gumbel 1954).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import Case, aligned_of, typed

_WIDTH = 512
_LOWEST = -(2**31)
_PHILOX = ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85))
_LARGEST_UNIFORM = 1 - 2.0**-24


@dataclass(frozen=True)
class DrawParams:
    """One entry per row that is drawn: which row of the logits, its key, and how it is filtered."""

    rows_S: Tensor
    """int64"""
    keys_S: Tensor
    """int64, the bits of an unsigned key"""
    top_k_S: Tensor
    """int32; 0 keeps all"""
    temperature_S: Tensor
    """float32, positive"""
    top_p_S: Tensor
    """float32; 1 keeps all"""
    min_p_S: Tensor
    """float32; 0 keeps all"""


def philox_words(keys_S: Tensor, num_counters: int) -> Tensor:
    """int64 [S, num_counters]: the first 32-bit word of Philox-4x32-10 at counters 0, 1, ... under each 64-bit key."""
    word = 0xFFFFFFFF
    counters = torch.arange(num_counters, device=keys_S.device)[None, :].expand(len(keys_S), -1)
    c0, c1, c2, c3 = counters, *(torch.zeros_like(counters) for _ in range(3))
    k0, k1 = (keys_S & word)[:, None], ((keys_S >> 32) & word)[:, None]
    (round_a, round_b), (key_a, key_b) = _PHILOX
    for _ in range(10):
        high_b, low_b = ((c2 * round_b) >> 32) & word, (c2 * round_b) & word
        high_a, low_a = ((c0 * round_a) >> 32) & word, (c0 * round_a) & word
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + key_a) & word, (k1 + key_b) & word
    return c0


def gumbel_twin(keys_S: Tensor, vocab_size: int) -> Tensor:
    """float32 [S, V]."""
    uniform = (philox_words(keys_S, vocab_size).to(torch.float32) + 0.5) * 2.0**-32
    uniform = uniform.clamp(max=_LARGEST_UNIFORM)
    # -log(1 - u) keeps its precision where u is small, which is where the largest noise comes from.
    near = uniform * (1.0 + uniform * (0.5 + uniform / 3.0))
    return -torch.where(uniform < 1e-3, near, -torch.log(1.0 - uniform)).log()


def draw_twin(logits_RV: Tensor, params: DrawParams) -> Tensor:
    """int64 [S]. Ties at a threshold stay. A row of -inf alone draws anything."""
    rows_SV = logits_RV[params.rows_S]
    top_S1 = rows_SV.amax(1, keepdim=True).nan_to_num(neginf=0.0)
    scaled_SV = (rows_SV - top_S1) / params.temperature_S[:, None]
    sorted_SV = scaled_SV.sort(1, descending=True).values
    last_S = (params.top_k_S.to(torch.int64).clamp(1, scaled_SV.shape[1]) - 1)[:, None]
    least_S1 = sorted_SV.gather(1, last_S).where((params.top_k_S > 0)[:, None], -torch.inf)
    mass_SV = torch.where(sorted_SV >= least_S1, sorted_SV.exp(), 0.0).cumsum(1, dtype=torch.float64)
    reached_SV = mass_SV >= (params.top_p_S.to(torch.float64) * mass_SV[:, -1])[:, None]
    by_mass_S1 = sorted_SV.gather(1, reached_SV.to(torch.int32).argmax(1, keepdim=True))
    by_mass_S1 = by_mass_S1.where((params.top_p_S < 1)[:, None], -torch.inf)
    floor_S1 = params.min_p_S.log()[:, None]
    least_S1 = torch.maximum(torch.maximum(least_S1, by_mass_S1), floor_S1)
    noisy_SV = scaled_SV + gumbel_twin(params.keys_S, scaled_SV.shape[1])
    return noisy_SV.masked_fill(scaled_SV < least_S1, -torch.inf).argmax(1)


@triton.jit
def _scaled(row, start, lane, vocabulary, top, temperature):
    value = tl.load(row + start + lane, mask=start + lane < vocabulary, other=float("-inf")).to(tl.float32)
    return (value - top) / temperature


@triton.jit
def _ordered(value):
    """Integers in the order of floats."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _threshold(row, vocabulary, top, temperature, least, wanted, BY_MASS: tl.constexpr, WIDTH: tl.constexpr):
    """The largest key with at least `wanted` tokens, or mass, at or above it; those below `least` do not count."""
    lane = tl.arange(0, WIDTH)
    found = tl.full((), -2147483648, tl.int64)
    for step in range(8):
        candidate = (found + (tl.arange(0, 16).to(tl.int64) << (28 - 4 * step))).to(tl.int32)
        total = tl.zeros((16, WIDTH), tl.float32)
        for start in range(0, vocabulary, WIDTH):
            scaled = _scaled(row, start, lane, vocabulary, top, temperature)
            key = _ordered(scaled)
            share = tl.where(key >= least, tl.exp(scaled), 0.0) if BY_MASS else tl.where(key >= least, 1.0, 0.0)
            total += tl.where(key[None, :] >= candidate[:, None], share[None, :], 0.0)
        enough = tl.sum(total, axis=1) >= wanted
        found += (tl.maximum(tl.sum(enough.to(tl.int32), axis=0), 1) - 1).to(tl.int64) << (28 - 4 * step)
    return found.to(tl.int32)


@triton.jit
def _draw(
    logits, rows, keys, top_ks, temperatures, top_ps, min_ps, out, stride, vocabulary, WIDTH: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    row = logits + tl.load(rows + place) * stride
    temperature = tl.load(temperatures + place)
    lane = tl.arange(0, WIDTH)
    largest = tl.full((WIDTH,), float("-inf"), tl.float32)
    for start in range(0, vocabulary, WIDTH):
        value = tl.load(row + start + lane, mask=start + lane < vocabulary, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, value)
    top = tl.max(largest, axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    least = tl.full((), -2147483648, tl.int32)
    top_k = tl.load(top_ks + place)
    if top_k > 0:
        least = _threshold(row, vocabulary, top, temperature, least, top_k.to(tl.float32), False, WIDTH)
    top_p = tl.load(top_ps + place)
    if top_p < 1.0:
        mass = tl.zeros((WIDTH,), tl.float32)
        for start in range(0, vocabulary, WIDTH):
            scaled = _scaled(row, start, lane, vocabulary, top, temperature)
            mass += tl.where(_ordered(scaled) >= least, tl.exp(scaled), 0.0)
        wanted = top_p * tl.sum(mass, axis=0)
        least = tl.maximum(least, _threshold(row, vocabulary, top, temperature, least, wanted, True, WIDTH))
    min_p = tl.load(min_ps + place)
    floor = tl.where(min_p > 0.0, tl.log(tl.maximum(min_p, 1e-38)), float("-inf"))
    seed = tl.load(keys + place)
    best = tl.full((WIDTH,), float("-inf"), tl.float32)
    best_at = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, vocabulary, WIDTH):
        scaled = _scaled(row, start, lane, vocabulary, top, temperature)
        word, _, _, _ = tl.randint4x(seed, (start + lane).to(tl.int32))
        uniform = tl.minimum(
            (word.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10, 1 - 2**-24
        )
        near = uniform * (1.0 + uniform * (0.5 + uniform / 3.0))
        noise = -tl.log(tl.where(uniform < 1e-3, near, -tl.log(1.0 - uniform)))
        kept = (_ordered(scaled) >= least) & (scaled >= floor)
        noisy = tl.where(kept, scaled + noise, float("-inf"))
        best_at = tl.where(noisy > best, start + lane, best_at)
        best = tl.maximum(best, noisy)
    highest = tl.max(best, axis=0)
    first = tl.min(tl.where(best == highest, best_at, 2147483647), axis=0)
    tl.store(out + place, first.to(tl.int64))


def draw(logits_RV: Tensor, params: DrawParams) -> Tensor:
    """As `draw_twin`; masses are summed in float32."""
    out_S = torch.empty(len(params.rows_S), dtype=torch.int64, device=logits_RV.device)
    if len(out_S):
        _draw[(len(out_S),)](
            logits_RV, params.rows_S, params.keys_S, params.top_k_S, params.temperature_S, params.top_p_S,
            params.min_p_S, out_S, logits_RV.stride(0), logits_RV.shape[1], WIDTH=_WIDTH, num_warps=8,
        )  # fmt: skip
    return out_S


def cases() -> list[Case]:
    signature = {
        **typed(p_fp32="logits temperatures top_ps min_ps", p_i64="rows keys out", p_i32="top_ks"),
        **typed(i32="stride vocabulary"),
    }
    return [Case("draw fp32", _draw, signature, {"WIDTH": _WIDTH}, num_warps=8, aligned=aligned_of(signature))]
