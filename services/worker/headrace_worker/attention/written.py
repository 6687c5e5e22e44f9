"""Rotating a step's rows and writing its keys and values to their pages in one launch, for backends on cards."""

from torch import Tensor

from headrace_worker.attention.base import HeadRows, KvPages
from headrace_worker.kernels.rope_kv import rope_kv
from headrace_worker.kernels.rotation import Rotation


def rotate_and_write(heads: HeadRows, rotation: Rotation, slots_T: Tensor, pages: KvPages) -> Tensor:
    """The rotated queries [T, N, D]."""
    q_TND, k_TKD = heads.qk_THD[:, : heads.num_heads], heads.qk_THD[:, heads.num_heads :]
    both = pages.k_PBKD, pages.v_PBKD
    scales = pages.k_scale, pages.v_scale
    return rope_kv(q_TND, k_TKD, heads.v_TKD, rotation.cos_sin_TD, slots_T, both, scales)
