"""What a caller asks of the engine, and the running state of one choice of it.

Plain data: this module knows neither pages' contents, nor tensors, nor the wire. Token ids are vocabulary indices
(unsigned 32-bit); durations are seconds; a `handle` is the caller's integer name for a choice, unique among live ones.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

TokenIds: TypeAlias = "tuple[int, ...] | list[int] | array[int]"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of a choice is drawn. Defaults draw from the model's own distribution.

    temperature 0 is greedy; top_k 0 and top_p 1 are off; top_p 0 means the top token. `allowed_ids` None allows all.
    The random stream is keyed by (seed, output index, choice), never by the batch.
    `num_logprobs` top alternatives (0..20) are reported beside the drawn token's own when `logprobs` is on.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_ids: frozenset[int] | None = None
    banned_ids: frozenset[int] = frozenset()
    seed: int | None = None
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: bool = False
    num_logprobs: int = 0

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the tokens drawn before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the output: kind is "json_object", "json_schema", "regex", "grammar" or "choice".

    `text` is its source: nothing, a schema, a regular expression, GBNF, or a JSON array of strings.
    """

    kind: str
    text: str


class HandOff(enum.Enum):
    """What another replica does of the prompt: nothing; it takes the pages from here; it computes all but the last
    token, and the pages come from there.
    """

    NONE = ""
    SEND = "send"
    RECEIVE = "receive"


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt of one response: `n` choices over one prompt. Choice i has handle `handle + i`.

    `priority` 0 is the most urgent class. `queue_deadline_s` runs from submit; None waits for ever.
    `inter_token_s` is the gap between tokens that this request may be made to suffer; None is no limit.
    `statistical` allows a promise of less than the whole future, and preemption, where the limits' `overrun` is not 0.
    `fair_key` is opaque; its share of the replica is proportional to `weight`.
    `chain_root` and `kv_context` are the digests that separate cached state (nobody hits across either).
    One that sends draws nothing and ends as "prefilled"; who takes its pages holds the first `from_page` already.
    """

    handle: int
    response_id: str
    attempt: int
    prompt_ids: TokenIds
    max_output: int
    n: int = 1
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None
    queue_deadline_s: float | None = None
    inter_token_s: float | None = None
    priority: int = 0
    statistical: bool = False
    fair_key: str = ""
    weight: float = 1.0
    chain_root: bytes = b""
    kv_context: bytes = b""
    hand_off: HandOff = HandOff.NONE
    from_page: int = 0

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    def packed_prompt(self) -> array[int]:
        """The prompt as unsigned 32-bit integers."""
        if isinstance(self.prompt_ids, array) and self.prompt_ids.typecode == "I":
            return self.prompt_ids
        return array("I", self.prompt_ids)

    @property
    def num_max(self) -> int:
        """The longest a choice can become, prompt included."""
        return len(self.prompt_ids) + self.max_output


class SequenceState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """The running state of one choice.

    `num_computed` counts the leading tokens whose KV is in its pages or in a plan that is in flight;
    `page_table[i]` holds positions i*page_tokens and up, and is replaced, never mutated, so a plan may keep it.
    `num_published` leading pages have been offered to the prefix cache; `num_in_flight` rows that sample for this
    choice have no result yet. Times are the caller's clock, in seconds.
    """

    request: Request
    choice: int
    num_computed: int = 0
    output_ids: list[int] = field(default_factory=list)
    page_table: tuple[int, ...] = ()
    state: SequenceState = SequenceState.WAITING
    finish_reason: str | None = None
    num_published: int = 0
    num_in_flight: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    worst_gap_s: float = 0.0
    handle: int = field(init=False)

    def __post_init__(self) -> None:
        self.handle = self.request.handle + self.choice

    @property
    def num_tokens(self) -> int:
        """Prompt and output ids known on the host."""
        return len(self.request.prompt_ids) + len(self.output_ids)
