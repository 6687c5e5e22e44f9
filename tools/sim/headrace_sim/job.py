"""One request on its way through the simulated fleet. Plain data."""

from array import array
from dataclasses import dataclass, field

from headrace_worker.scheduling.plan import ResultRow
from headrace_workload.arrival import Arrival


@dataclass(slots=True, eq=False)
class Job:
    """Times are seconds of the virtual clock; `num_left` tokens of the actual output are not generated yet.

    `ending` is one of completed, incomplete, failed, cancelled, or refused (before anything was promised).
    """

    arrival: Arrival
    slo_class: str
    handle: int = 0
    attempt: int = 1
    replica_id: str = ""
    decision_id: str = ""
    prefill_id: str = ""
    """Who computes its prompt, if not the replica that decodes it."""
    num_left: int = 0
    num_cached: int = 0
    queue_s: float = 0.0
    deadline_s: float | None = None
    accepted_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0
    worst_gap_s: float = 0.0
    ended_s: float = 0.0
    ending: str = ""
    reason: str = ""
    num_tries: int = 0
    excluded: frozenset[str] = frozenset()
    prompt_ids: array = field(default_factory=lambda: array("I"))  # type: ignore[type-arg]
    one_token: ResultRow | None = None
    """What a step that does not end it draws for it, made once."""

    @property
    def num_generated(self) -> int:
        return self.arrival.num_output - self.num_left

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.arrival.at_s

    @property
    def inter_token_s(self) -> float:
        """Mean gap between its tokens."""
        if self.first_s is None or self.num_generated < 2:
            return 0.0
        return (self.last_s - self.first_s) / (self.num_generated - 1)
