"""One kernel in one configuration, as it is compiled ahead of time: what is launched is what was compiled.

Configurations come from tables by architecture and shape class. Nothing is tuned when a request arrives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TARGETS = (80, 89, 90, 100)
"""Compute capabilities times ten: A100, L4 and RTX 40, H100 and H200, B200."""
FP8_TARGETS = (89, 90, 100)
"""E4M3 does not compile for 8.0."""


@dataclass(frozen=True)
class Case:
    """`signature` gives the type of each argument that is no constant; names in `aligned` are multiples of 16."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    aligned: frozenset[str] = field(default=frozenset())
    targets: tuple[int, ...] = TARGETS


def typed(**names_of_type: str) -> dict[str, str]:
    """A signature from the names of each type: `p_` stands for a pointer, as in typed(p_bf16="x out", i32="size")."""
    return {
        name: f"*{kind[2:]}" if kind.startswith("p_") else kind
        for kind, names in names_of_type.items()
        for name in names.split()
    }


def aligned_of(signature: Mapping[str, str], also: str = "") -> frozenset[str]:
    """Arguments that are multiples of 16 in practice: pointers (torch aligns its storage), and the sizes in `also`."""
    return frozenset({*(name for name, kind in signature.items() if kind.startswith("*")), *also.split()})


def warps_of(width: int) -> int:
    """Warps of a row-wise kernel of so many lanes: about eight elements for each thread."""
    return max(1, min(16, width // 256))
