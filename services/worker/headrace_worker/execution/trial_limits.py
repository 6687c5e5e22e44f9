"""What the compilation of one constraint may cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrialLimits:
    """CPU and wall seconds, and bytes beyond what the process has when it begins."""

    cpu_s: float = 3.0
    wall_s: float = 20.0
    memory_bytes: int = 1 << 30
