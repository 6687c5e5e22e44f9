"""What the leader of a group and its ranks tell one another. Plain data, pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from headrace_worker.config import WorkerConfig
from headrace_worker.execution.steps import Drawn as Tokens
from headrace_worker.execution.steps import RankSizes
from headrace_worker.execution.token_mask import TokenMasks
from headrace_worker.parallel.collectives import Meeting
from headrace_worker.scheduling.plan import Plan
from headrace_worker.transfer.image import ImageRef


@dataclass(frozen=True, slots=True)
class Join:
    """To a rank, first and alone: become `rank` of the group, with the weights at `path`."""

    config: WorkerConfig
    path: Path
    rank: int
    meeting: Meeting
    ring_fd: int
    bell_fd: int


# To all ranks, through the ring.


@dataclass(frozen=True, slots=True)
class Pack:
    """Every rank is Filled: pack the weights, together where inputs are shared."""


@dataclass(frozen=True, slots=True)
class Allocate:
    num_pages: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Between begin and end, the most memory that steps take is the workspace."""

    begin: bool


@dataclass(frozen=True, slots=True)
class TellSizes:
    """Asks every rank for its Sizes."""


@dataclass(frozen=True, slots=True)
class TellImages:
    """Asks every rank for its Images."""


@dataclass(frozen=True, slots=True)
class Run:
    plan: Plan


@dataclass(frozen=True, slots=True)
class Draw:
    """To the rank that draws, for its oldest step; it answers Drawn."""

    masks: TokenMasks | None


@dataclass(frozen=True, slots=True)
class Look:
    """Compute without drawing; the rank that would draw answers Logits."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure sums over the tensor groups."""


Order: TypeAlias = Pack | Allocate | Measure | TellSizes | TellImages | Run | Draw | Look | Probe


# From a rank, through its own connection.


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, from a thread of its own."""


@dataclass(frozen=True, slots=True)
class Here:
    """The process runs and has imported what it needs."""


@dataclass(frozen=True, slots=True)
class Filled:
    """The rank has read its weights, and waits for Pack."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The rank's weights are in memory."""


@dataclass(frozen=True, slots=True)
class Sizes:
    sizes: RankSizes


@dataclass(frozen=True, slots=True)
class Images:
    refs: tuple[ImageRef, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Logits:
    logits_RV: Tensor


@dataclass(frozen=True, slots=True)
class Broke:
    """The rank ends after this; `known` if its operator can correct it."""

    detail: str
    known: bool


Report: TypeAlias = Beat | Here | Filled | Loaded | Sizes | Images | Drawn | Logits | Broke
