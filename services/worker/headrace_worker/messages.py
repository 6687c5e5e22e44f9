"""What the worker process and its engine process tell one another. Plain data; a step is one message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headrace_worker.config import WorkerConfig
from headrace_worker.engine import EngineOutput
from headrace_worker.execution.runner import RunnerDescription
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.page_events import PageKey
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class Start:
    """To the engine, first."""

    config: WorkerConfig


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop every cached page; page events begin anew under this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ListPages:
    """Asks for one PageList."""


@dataclass(frozen=True, slots=True)
class Received:
    """What `PagesWanted` asked for is in the images of the pool, checked."""

    handle: int


@dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """It will not come; somebody may still write there until EndTransfer."""

    handle: int
    reason: str


@dataclass(frozen=True, slots=True)
class EndTransfer:
    """Nobody else reads or writes the pages of this request any more."""

    handle: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave now; whatever runs is lost."""


Command: TypeAlias = Submit | Cancel | Flush | ListPages | Received | ReceiveFailed | EndTransfer | Stop


@dataclass(frozen=True, slots=True)
class Alive:
    """From a thread, whatever the loop does. `due_s`: when the loop's step should be over (CLOCK_MONOTONIC)."""

    due_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """How far the start-up is; `share` from 0 to 1."""

    phase: Literal["loading", "warming"]
    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine serves. Seconds per start-up phase."""

    description: RunnerDescription
    startup_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class PagesReady:
    """In the images of the pool these pages are whole in layers `first_layer` to `end_layer` - 1."""

    exports: tuple[PageExport, ...]
    first_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class Broke:
    """The engine ends after this: one sentence, and where it happened if that is our own fault."""

    detail: str
    traceback: str


@dataclass(frozen=True, slots=True)
class PageList:
    """Every page that can be hit, as of just before the page event `next_seq`."""

    epoch: int
    next_seq: int
    keys: tuple[PageKey, ...]


Report: TypeAlias = Alive | Phase | Ready | Broke | PageList | PagesReady | EngineOutput
