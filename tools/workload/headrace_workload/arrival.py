"""One request that arrives: its time, its lengths and what its prompt is made of. Plain data."""

from typing import NamedTuple


class Segment(NamedTuple):
    """A run of tokens of a prompt. Equal seeds mean equal tokens, so equal leading segments are a shared prefix."""

    seed: int
    num_tokens: int


class Arrival(NamedTuple):
    """`at_s` counts from the start of the workload; `num_output` tokens are generated, of a declared `max_output`.

    The segments sum to `num_prompt`. `number` counts arrivals in order of time, from 0.
    """

    number: int
    at_s: float
    model: str
    num_prompt: int
    max_output: int
    num_output: int
    segments: tuple[Segment, ...]
    tenant: str = ""
    slo_class: str = ""
    session: str = ""
    turn: int = 0
