"""Which attention serves a device and mode; chosen once, at start."""

from headrace_worker.attention.base import AttentionBackend
from headrace_worker.attention.torch_invariant import TorchInvariantAttention
from headrace_worker.attention.torch_paged import TorchPagedAttention


def select_attention(deterministic: bool) -> AttentionBackend:
    """Batch-invariant attention when asked for, else the fast one."""
    return TorchInvariantAttention() if deterministic else TorchPagedAttention()
