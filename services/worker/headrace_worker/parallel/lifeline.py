"""No process of ours outlives the one that started it. Knows nothing of what either does."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Linux: the kernel kills us when the thread that started us ends. Elsewhere the end of a pipe alone does."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
