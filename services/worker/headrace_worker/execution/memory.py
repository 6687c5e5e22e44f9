"""How much memory there is and how much a step needs, measured. Knows devices, not models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

CPU_SHARE = 4
CPU_MOST_BYTES = 2 * 1024**3
# Of what is left on a GPU, this share stays free for the allocator's fragments.
GPU_SPARE = 0.05
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass
class Peak:
    """Bytes above the level at the start; 0 where the system cannot tell."""

    num_bytes: int = 0


@contextlib.contextmanager
def measure_peak(device: torch.device) -> Iterator[Peak]:
    """The most memory that the block held at once, beyond what was held before."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.num_bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with contextlib.suppress(OSError):  # not on Linux: the peak since the start is an upper bound of nothing
        _CLEAR_REFS.write_text(_RESET_PEAK)
    before = _status_bytes("VmRSS")
    yield peak
    peak.num_bytes = max(0, _status_bytes("VmHWM") - before)


@contextlib.contextmanager
def measure_held(device: torch.device) -> Iterator[Peak]:
    """What a GPU has less of after the block, whoever holds it: the allocator does not count what graphs keep."""
    held = Peak()
    if device.type != "cuda":
        yield held
        return
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(device)
    yield held
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    held.num_bytes = max(0, before - torch.cuda.mem_get_info(device)[0])


def kv_budget(device: torch.device, asked_bytes: int | None, workspace_bytes: int) -> int:
    """Bytes for KV pages: what was asked for, or what is left (GPU), or min(2 GiB, a quarter of free RAM) (CPU)."""
    if asked_bytes is not None:
        return asked_bytes
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return max(0, int((free_bytes - workspace_bytes) * (1 - GPU_SPARE)))
    return min(CPU_MOST_BYTES, free_ram_bytes() // CPU_SHARE)


def free_ram_bytes() -> int:
    """MemAvailable of Linux, within the limit of our control group."""
    available = _field_bytes(Path("/proc/meminfo"), "MemAvailable")
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    with contextlib.suppress(OSError, ValueError):  # no control group, or one without a limit
        available = min(available, int(limit.read_text()) - int(used.read_text()))
    return max(0, available)


def _status_bytes(name: str) -> int:
    return _field_bytes(_STATUS, name)


def _field_bytes(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
