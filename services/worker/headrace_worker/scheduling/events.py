"""What the scheduler tells its caller: one outcome per submit, and if that is accepted, one ending per choice.

    submit --> Refused
           --> Accepted --> [PagesWanted] --> Progress* --> Tokens* --> Finished   (the last two once per choice)

Knows no wire format; the reasons are the strings of the status map.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

FinishKind: TypeAlias = Literal["completed", "incomplete", "failed", "cancelled"]

_KIND_OF_REASON: dict[str, FinishKind] = {
    "stop": "completed",
    "prefilled": "completed",
    "tool_calls": "completed",
    "length": "incomplete",
    "content_filter": "incomplete",
    "client": "cancelled",
    "disconnect": "cancelled",
    "slow_client": "cancelled",
}


def kind_of(reason: str) -> FinishKind:
    """Which of the four terminals a reason belongs to; what is not named otherwise is a failure."""
    return _KIND_OF_REASON.get(reason, "failed")


class Accepted(NamedTuple):
    """The request has left the waiting room and its whole future is reserved."""

    handle: int
    response_id: str
    attempt: int
    cached_tokens: int
    promised_pages: int
    queue_s: float


class Refused(NamedTuple):
    """The request never ran. `field` names the bad field of an invalid one; a cancelled one has the cancel's reason.

    `numbers` are what the reason is about: (needed, available) pages of prompt_exceeds_capacity, (prompt, max_output,
    limit) tokens of context_length_exceeded. `retry_after_s` is None where trying again cannot help.
    """

    handle: int
    response_id: str
    attempt: int
    reason: str
    detail: str
    field: str | None = None
    numbers: tuple[int, ...] = ()
    retry_after_s: float | None = None


class PagesWanted(NamedTuple):
    """Of an accepted request: another replica is to compute its first `num_tokens` prompt tokens, of which the first
    `first_page` pages are here already; the others go to `pages`.
    """

    handle: int
    response_id: str
    attempt: int
    first_page: int
    pages: tuple[int, ...]
    num_tokens: int


class Progress(NamedTuple):
    """Prompt tokens computed (or reused) so far, of a prompt that needs more steps."""

    handle: int
    num_prefilled: int


class Tokens(NamedTuple):
    """Token ids that one choice got in one step, the end token included. `logprobs` has one entry per token."""

    handle: int
    token_ids: tuple[int, ...]
    logprobs: tuple[object, ...] | None


class Finished(NamedTuple):
    """The one ending of one choice.

    `num_generated` counts every id drawn for it; `accepted_count` how many of them the caller took (a stop string
    found outside, a cancel), else the same number. `num_late_steps` rows of it were still in flight and count for
    nobody. Pages are those of the whole request: promised at admission, used at most by the time this choice ended.
    """

    handle: int
    response_id: str
    attempt: int
    choice: int
    kind: FinishKind
    reason: str
    num_prompt: int
    cached_tokens: int
    num_generated: int
    accepted_count: int
    num_late_steps: int
    queue_s: float
    prefill_s: float
    decode_s: float
    worst_gap_s: float
    promised_pages: int
    used_pages: int


Event: TypeAlias = Accepted | Refused | PagesWanted | Progress | Tokens | Finished
