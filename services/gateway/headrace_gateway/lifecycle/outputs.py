"""What a response asks its shell to do: the outputs of its state machine.

Plain frozen data, to be carried out in the order given; a Delta, made per token, is a named tuple because that is
cheaper. Knows no protobuf and no transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .events import AdmitRefused, AttemptRefused, Decision, RouteRefused
from .settlement import Prefill, Settlement, Usage

# ---- to the client ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Created:
    """The identity is open: from here on exactly one Terminal ends the stream."""

    sequence_number: int
    attempt: int


class Delta(NamedTuple):
    """Text of one choice, never empty. `num_tokens` tokens are all out with it (0 if a token is only partly out)."""

    sequence_number: int
    choice: int
    text: str
    num_tokens: int
    logprobs: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """One choice ended by itself or was blocked: stop, length, tool_calls or content_filter.

    `stop` is the client's stop string that ended it, if one did.
    """

    sequence_number: int
    choice: int
    reason: str
    num_tokens: int
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The one ending: completed, incomplete, failed or cancelled, with its typed reason."""

    sequence_number: int
    kind: str
    reason: str
    detail: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed status before Created; no identity was opened and nothing follows."""

    reason: str
    detail: str = ""
    field: str = ""
    retry_after_s: float | None = None

    @classmethod
    def of(cls, event: AdmitRefused | RouteRefused | AttemptRefused) -> Refusal:
        """What somebody's refusal is to the client."""
        return cls(event.reason, event.detail, event.field, event.retry_after_s)


# ---- to policy -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask policy to reserve the bounds."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Raw text for screening; `offset` counts code points of this attempt's choice. `final`: no more will follow."""

    attempt: int
    choice: int
    offset: int
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ScreenClose:
    """Forget what is being screened for this attempt."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Close the books of this response; always before Terminal or Refusal, and once."""

    settlement: Settlement


# ---- to the router ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Route:
    """Ask for a replica for this attempt, none of `excluded` (replica ids)."""

    attempt: int
    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """How a decision ended, once per decision.

    `outcome`: completed, incomplete, refused, failed, lost, or cancelled (which says nothing about the replica).
    `phase` the attempt was in: routed (never submitted), queued, prefill or decode.
    """

    attempt: int
    decision_id: str
    outcome: str
    reason: str
    phase: str
    num_generated: int


# ---- to the worker ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Send this attempt to the decided replica; both deadlines are durations from now."""

    attempt: int
    decision: Decision
    queue_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop one choice of an attempt (-1: all). `accepted_count`: its tokens that count; None: all it generated."""

    attempt: int
    choice: int
    reason: str
    accepted_count: int | None


@dataclass(frozen=True, slots=True)
class Ack:
    """The finals of this attempt are in the books: the worker may forget them.

    A final that comes after the settlement is in no books: `num_settled` tokens of the attempt are all that are, and
    `late_device_us` of its replica's time, and what `late_prefill` did, have to be booked beside them.
    """

    attempt: int
    num_settled: int | None = None
    late_device_us: int = 0
    late_prefill: Prefill | None = None


ClientEvent = Created | Delta | ChoiceFinished | Terminal
Output = ClientEvent | Refusal | Admit | Screen | ScreenClose | Settle | Route | Report | Submit | Cancel | Ack
