"""The port behind which a plan is computed. Knows no torch, no wire and no policy of who runs when.

A runner is built with its model loaded; then `warm_up` once, then `describe` says what came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace_worker.perf.step import Roofline
from headrace_worker.scheduling.plan import PageExport, Plan, StepResult
from headrace_worker.scheduling.request import Request
from headrace_worker.transfer.image import ImageRef

# Pages are whole in these layers (first, end), in the images: called from within a step, at least once per export.
OnPages: TypeAlias = Callable[[tuple[PageExport, ...], int, int], None]
# Tells a person how far a phase is: (what it does, share done from 0 to 1).
Progress: TypeAlias = Callable[[str, float], None]


class TokenLogprob(NamedTuple):
    """Natural logarithms: of the drawn token, and of the likeliest alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Opened(NamedTuple):
    """The runner can run the request. `pieces[k]` are the bytes of output id `vocab_size + k` (scripted only)."""

    pieces: tuple[bytes, ...] = ()


class Rejected(NamedTuple):
    """The runner cannot: a reason of the status map, the field that is wrong, one sentence."""

    reason: str
    field: str
    detail: str
    retry_after_s: float | None = None


class Opening(ABC):
    """The runner needs a while to say whether it can run the request, and says so without being waited for."""

    @abstractmethod
    def outcome(self) -> Opened | Rejected | None:
        """None while it is not known."""


class GroupTimes(NamedTuple):
    """Seconds of the ranks of a group since the step before ended: in collectives (rank 0), and by pipeline stage
    (their first ranks) at work and without work.
    """

    collective_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0

    def __add__(self, other: object) -> GroupTimes:
        assert isinstance(other, GroupTimes), f"{other!r} cannot be added"
        return GroupTimes(*(mine + more for mine, more in zip(self, other, strict=True)))


class Ran(NamedTuple):
    """A finished step. `wake_s`: nothing moved, and nothing can before this point of the clock.

    `sample_s`: seconds of it that drawing tokens took.
    """

    result: StepResult
    wake_s: float | None = None
    times: GroupTimes = GroupTimes()
    sample_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunnerDescription:
    """What was loaded and measured. Bytes are over all ranks; `num_pages` leaves out the null page."""

    engine: str
    model: str
    revision: str
    fingerprint: bytes
    vocab_size: int
    end_token_ids: frozenset[int]
    max_context: int
    page_tokens: int
    num_pages: int
    precision: str
    quantization: str = "none"
    kv_bytes_per_token: int = 0
    weight_bytes: int = 0
    workspace_bytes: int = 0
    kv_pool_bytes: int = 0
    logprobs: bool = True
    grammar: bool = False
    card: bytes = b""
    # Measured seconds of the smallest and the largest step of warm-up, and the tokens of the latter.
    small_step_s: float = 0.0
    large_step_s: float = 0.0
    large_step_tokens: int = 1
    # Ranks of the group: tensor-parallel times pipeline-parallel degree.
    tp: int = 1
    pp: int = 1
    # Plans that can be in flight: while the last stage computes one, the first can have the next.
    depth: int = 1
    # Whether one plan more can be: its decodes read the tokens of the step before on the device.
    overlap: bool = False
    # What the card can do with this model; None where nothing is computed on one.
    roofline: Roofline | None = None
    # Measured all-reduces over one tensor group: bytes and seconds; and the fast-link domains of the devices.
    all_reduce: tuple[tuple[int, float], ...] = ()
    # Of every rank, if other replicas are to read or fill the pages.
    images: tuple[ImageRef, ...] = ()
    domains: tuple[str, ...] = ()


class RunnerError(Exception):
    """The model cannot be served here: unreadable weights, a wrong known answer, too little memory."""


class Runner(ABC):
    """Computes plans, in the order of their step numbers."""

    @abstractmethod
    def warm_up(self, progress: Progress) -> None:
        """Measure memory, run the smallest and largest shapes and a known answer. Raises RunnerError."""

    @abstractmethod
    def describe(self) -> RunnerDescription:
        """After `warm_up`."""

    @abstractmethod
    def open(self, request: Request) -> Opened | Rejected | Opening:
        """Whether this request can be run at all; prepares what is worth preparing before it is admitted."""

    @abstractmethod
    def launch(self, plan: Plan) -> None:
        """Begin a step; at most `depth` of them, and one more with overlap, are begun and not collected."""

    @abstractmethod
    def collect(self) -> Ran:
        """The end of the oldest step begun. A fault of one sequence is an error row of its own."""

    def run(self, plan: Plan) -> Ran:
        """One step from begin to end."""
        self.launch(plan)
        return self.collect()

    @abstractmethod
    def watch_pages(self, on_pages: OnPages) -> None:
        """Who wants to know of the exports of plans; before the first plan."""

    @abstractmethod
    def close(self, handles: Iterable[int]) -> None:
        """Forget requests (by the handle of choice 0) that were opened, or are being opened, and never admitted."""
