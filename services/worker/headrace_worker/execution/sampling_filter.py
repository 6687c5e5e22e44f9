"""Top-k, top-p and min-p over a batch of scaled logits. Knows no request; parameters come as one value per row.

Order, as in Hugging Face transformers and vLLM: top-k, then top-p over what is left, then min-p.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Top-p looks at so many likeliest tokens first; a row's whole vocabulary is sorted only if they do not hold the mass.
_FIRST_LOOK = 256


def filter_logits(scaled_RV: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor) -> Tensor:
    """Logits with -inf where a filter drops a token. top_k 0, top_p 1 and min_p 0 drop nothing. Top tokens stay."""
    vocab_size = scaled_RV.shape[1]
    wanted_R = top_k_R.clamp(max=vocab_size)
    if bool((wanted_R > 0).any()):
        scaled_RV = _keep_top_k(scaled_RV, wanted_R)
    if bool((top_p_R < 1).any()):
        scaled_RV = _keep_top_p(scaled_RV, top_p_R)
    if bool((min_p_R > 0).any()):
        floor_R = scaled_RV.amax(1) + min_p_R.log()
        scaled_RV = scaled_RV.masked_fill(scaled_RV < floor_R[:, None], float("-inf"))
    return scaled_RV


def _keep_top_k(scaled_RV: Tensor, top_k_R: Tensor) -> Tensor:
    best_RK = scaled_RV.topk(int(top_k_R.max()), dim=1).values
    last_R = best_RK.gather(1, (top_k_R - 1).clamp(min=0)[:, None])[:, 0]
    last_R = last_R.masked_fill(top_k_R == 0, float("-inf"))
    return scaled_RV.masked_fill(scaled_RV < last_R[:, None], float("-inf"))


def _keep_top_p(scaled_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Keep the likeliest tokens up to and with the one that brings their mass to top_p."""
    probs_RV = scaled_RV.softmax(1)
    best_RK = probs_RV.topk(min(_FIRST_LOOK, probs_RV.shape[1]), dim=1).values
    least_R = _least_kept(best_RK, top_p_R)
    wide_R = (best_RK.sum(1, dtype=torch.float64) < top_p_R) & (top_p_R < 1)
    if bool(wide_R.any()):
        least_R[wide_R] = _least_kept(probs_RV[wide_R].sort(1, descending=True).values, top_p_R[wide_R])
    least_R = least_R.masked_fill(top_p_R >= 1, 0.0)
    return scaled_RV.masked_fill(probs_RV < least_R[:, None], float("-inf"))


def _least_kept(sorted_RK: Tensor, top_p_R: Tensor) -> Tensor:
    """The smallest probability that stays, from probabilities in falling order."""
    before_RK = sorted_RK.cumsum(1, dtype=torch.float64) - sorted_RK
    num_kept_R = (before_RK < top_p_R[:, None]).sum(1).clamp(min=1)
    return sorted_RK.gather(1, (num_kept_R - 1)[:, None])[:, 0]
