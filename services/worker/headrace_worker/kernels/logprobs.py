"""Log-probabilities of chosen tokens without a log-softmax of the whole vocabulary in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from headrace_worker.kernels.case import Case, aligned_of, typed
from headrace_worker.kernels.wide import widened

_WIDTH = 4096


def gather_logprobs_twin(logits_RV: Tensor, ids_RM: Tensor) -> Tensor:
    """float32 [R, M]: log softmax of each row at its ids; an id below 0 gives -inf."""
    wide = widened(logits_RV)
    found = (wide - torch.logsumexp(wide, dim=-1, keepdim=True)).gather(1, ids_RM.clamp(min=0).to(torch.int64))
    return found.where(ids_RM >= 0, -torch.inf)


@triton.jit
def _gather_logprobs(logits, ids, out, stride, vocabulary, num_ids, WIDTH: tl.constexpr, IDS_WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    # Each lane keeps a running maximum and sum of its own; they meet once, at the end.
    largest = tl.full((WIDTH,), float("-inf"), tl.float32)
    total = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, vocabulary, WIDTH):
        value = tl.load(logits + row * stride + start + lane, mask=start + lane < vocabulary, other=float("-inf")).to(
            tl.float32
        )
        higher = tl.maximum(largest, value)
        # A lane that has seen only -inf stays at zero: -inf less -inf is no number.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(largest - base) + tl.exp(value - base)
        largest = higher
    top = tl.max(largest, axis=0)
    sum_at_top = tl.sum(total * tl.exp(largest - top), axis=0)
    log_total = top + tl.log(sum_at_top)
    place = tl.arange(0, IDS_WIDTH)
    is_id = place < num_ids
    token = tl.load(ids + row * num_ids + place, mask=is_id, other=-1)
    chosen = tl.load(logits + row * stride + token, mask=token >= 0, other=float("-inf")).to(tl.float32)
    tl.store(out + row * num_ids + place, chosen - log_total, mask=is_id)


def gather_logprobs(logits_RV: Tensor, ids_RM: Tensor) -> Tensor:
    """As `gather_logprobs_twin`."""
    num_rows, num_ids = ids_RM.shape
    out_RM = torch.empty((num_rows, num_ids), dtype=torch.float32, device=logits_RV.device)
    if num_rows and num_ids:
        _gather_logprobs[(num_rows,)](
            logits_RV,
            ids_RM.to(torch.int64).contiguous(),
            out_RM,
            logits_RV.stride(0),
            logits_RV.shape[1],
            num_ids,
            WIDTH=_WIDTH,
            IDS_WIDTH=triton.next_power_of_2(num_ids),
            num_warps=8,
        )
    return out_RM


def cases() -> list[Case]:
    found = []
    for dtype in ("bf16", "fp32"):
        signature = {"logits": f"*{dtype}", **typed(p_i64="ids", p_fp32="out", i32="stride vocabulary num_ids")}
        aligned = aligned_of(signature, "stride")
        constants = {"WIDTH": _WIDTH, "IDS_WIDTH": 32}
        found.append(
            Case(f"gather_logprobs {dtype}", _gather_logprobs, signature, constants, num_warps=8, aligned=aligned)
        )
    return found
