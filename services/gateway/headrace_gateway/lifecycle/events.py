"""What can happen to a response: the inputs of its state machine.

Plain frozen data. Knows no protobuf, socket or token id: the shell translates gRPC, HTTP, policy, router and worker
messages into these, and turns token ids into text before it hands them over. What is made per token is a named tuple,
which costs a fifth of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from .settlement import Prefill


class Screening(IntEnum):
    """Whether output text must be released by policy, and what its loss means."""

    NONE = 0
    FAIL_OPEN = 1
    FAIL_CLOSED = 2


@dataclass(frozen=True, slots=True)
class Start:
    """The request was authenticated, checked and tokenized: its bounds are known."""


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client ended it. `reason` is "client" (explicit cancel), "disconnect" or "slow_client"."""

    reason: str


@dataclass(frozen=True, slots=True)
class GatewayStops:
    """This process ends, and the time for what runs is over. The client is still there."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """Policy reserved the bounds; output is screened as stated."""

    screening: Screening = Screening.NONE


@dataclass(frozen=True, slots=True)
class AdmitRefused:
    """Policy refused and reserved nothing. `reason` is one of the status reasons (rpm, blocked_input, ...)."""

    reason: str
    detail: str = ""
    field: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Redaction:
    """Code points [start, end) of the raw text of a choice read `replacement` to the client."""

    start: int
    end: int
    replacement: str


@dataclass(frozen=True, slots=True)
class ScreenReleased:
    """Policy lets the raw text of a choice pass up to code point `released_up_to`; redactions are inside that range."""

    attempt: int
    choice: int
    released_up_to: int
    redactions: tuple[Redaction, ...] = ()
    flagged: bool = False


@dataclass(frozen=True, slots=True)
class ScreenBlocked:
    """Policy blocks a choice after code point `released_up_to`: every choice of the response ends."""

    attempt: int
    choice: int
    released_up_to: int = 0
    redactions: tuple[Redaction, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PolicyLost:
    """Policy cannot be reached: the Admit call failed, or the screening stream broke."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A router's answer, as far as the lifecycle needs it. `queue_s`: how long the worker may keep it waiting;
    `prefill_id`: the replica that computes the prompt for it, if another one does.
    """

    decision_id: str
    replica_id: str
    replica_epoch: str
    queue_s: float
    prefill_id: str = ""


@dataclass(frozen=True, slots=True)
class Routed:
    """The router chose a replica for this attempt."""

    attempt: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class RouteRefused:
    """The router has no replica for this attempt (no_replica, draining, busy, deadline), or could not be asked."""

    attempt: int
    reason: str
    detail: str = ""
    field: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The worker reserved the whole future of this attempt."""

    attempt: int
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AttemptRefused:
    """The worker did not take this attempt (busy, draining, queue_deadline, share_exceeded, invalid_grammar, ...)."""

    attempt: int
    reason: str
    detail: str = ""
    field: str = ""
    retry_after_s: float | None = None


class Tokens(NamedTuple):
    """New tokens of one choice, already text.

    `num_tokens` tokens arrived; `text` is what they let out (after detokenizing and stop strings), often "".
    `num_shown` counts the tokens, earlier held ones included, whose text is all out now; it is 0 when `text` is empty.
    `logprobs` are opaque entries of the shown tokens. `stop_at`: a stop string was completed by the stop_at-th token of
    this choice, which was `stop`; tokens after it are overshoot.
    """

    attempt: int
    choice: int
    num_tokens: int
    text: str
    num_shown: int
    logprobs: tuple[object, ...] = ()
    stop_at: int | None = None
    stop: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceFinal:
    """The worker's last word on one choice, after all its tokens.

    `kind` is "stop" (end token or stop id), "length", "cancelled" or "failed"; `reason` is typed for the last two.
    `num_generated` counts every sampled id, of which `num_late` came from a step already in flight when the choice
    ended. `tail` is the text that detokenizer and stop filter still held (only used when the choice ended by itself),
    and `num_tail_shown` the tokens that are all out with it. `prefill` is in that of choice 0 alone.
    """

    attempt: int
    choice: int
    kind: str
    reason: str
    num_generated: int
    num_late: int = 0
    detail: str = ""
    tail: str = ""
    num_tail_shown: int = 0
    tail_logprobs: tuple[object, ...] = ()
    device_us: int = 0
    prefill: Prefill | None = None


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """The attempt is gone and sends no more finals: worker_lost (5 s without a frame, engine child too)."""

    attempt: int
    reason: str = "worker_lost"


@dataclass(frozen=True, slots=True)
class DecodeFailed:
    """The text side of one choice broke (detokenizer, parser): only this response fails."""

    attempt: int
    choice: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """The clock reached `Response.next_deadline` (early or late ticks do no harm)."""


Event = (
    Start
    | ClientGone
    | GatewayStops
    | Admitted
    | AdmitRefused
    | ScreenReleased
    | ScreenBlocked
    | PolicyLost
    | Routed
    | RouteRefused
    | Accepted
    | AttemptRefused
    | Tokens
    | ChoiceFinal
    | AttemptLost
    | DecodeFailed
    | Tick
)
