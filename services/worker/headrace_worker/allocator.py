"""How the C library keeps memory that was freed. Messages of megabytes come and go with every hand-off: glibc gives
such memory back at once and maps it anew, and touching it page by page then costs several times what a copy does.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3). What is larger than the first is mapped by itself, and unmapped when it is freed; of what is
# free at the end of the heap as much as the second is kept.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MAPPED_FROM_BYTES = 16 * 1024 * 1024
_KEPT_BYTES = 128 * 1024 * 1024


def keep_freed_memory() -> bool:
    """For this process, from now on. False, and nothing changes, with another C library than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
