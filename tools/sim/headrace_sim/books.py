"""What became of every request, in columns, and whether it adds up. Knows numbers, not how they came about.

arrived = refused + accepted + pending        accepted = completed + incomplete + failed + cancelled
generated = billed + refunded                 (failed responses are refunded)
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from headrace_sim.errors import SimulationError
from headrace_sim.job import Job

_NOT = -1.0


@dataclass
class Column:
    """Outcomes of one (model, class); a list position is one request that ended."""

    ttft_ms: int
    inter_token_ms: int
    ttft_s: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    inter_token_s: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    worst_gap_s: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    queue_s: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    arrived_s: array = field(default_factory=lambda: array("d"))  # type: ignore[type-arg]
    met: array = field(default_factory=lambda: array("b"))  # type: ignore[type-arg]
    good_tokens: int = 0
    output_tokens: int = 0

    def add(self, job: Job) -> None:
        ttft_s = job.ttft_s
        served = job.ending in ("completed", "incomplete")
        met = served and ttft_s is not None and ttft_s * 1000 <= self.ttft_ms
        if met and self.inter_token_ms:
            met = job.inter_token_s * 1000 <= self.inter_token_ms
        self.ttft_s.append(ttft_s if served and ttft_s is not None else _NOT)
        self.inter_token_s.append(job.inter_token_s if served and job.num_generated > 1 else _NOT)
        self.worst_gap_s.append(job.worst_gap_s if served and job.num_generated > 1 else _NOT)
        self.queue_s.append(job.queue_s)
        self.arrived_s.append(job.arrival.at_s)
        self.met.append(met)
        if served:
            self.output_tokens += job.num_generated
            self.good_tokens += job.num_generated if met else 0


@dataclass
class Books:
    """All columns and all counts."""

    columns: dict[tuple[str, str], Column] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    num_arrived: int = 0
    num_accepted: int = 0
    num_generated: int = 0
    num_billed: int = 0
    num_refunded: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def end(self, job: Job, column: Column) -> None:
        """The one ending of a request."""
        assert job.ending, "who ends has an ending"
        column.add(job)
        self.endings[job.ending] += 1
        if job.ending not in ("completed", "incomplete"):
            self.reasons[job.reason] += 1
        if job.ending != "refused":
            self.num_accepted += 1
            self.num_prompt_tokens += job.arrival.num_prompt
            self.num_cached_tokens += job.num_cached
        self.num_generated += job.num_generated
        if job.ending in ("completed", "incomplete"):
            self.num_billed += job.num_generated
        else:
            self.num_refunded += job.num_generated

    @property
    def num_ended(self) -> int:
        return sum(self.endings.values())

    def check(self, num_pending: int) -> None:
        """Raises SimulationError with both sides of the first equation that does not hold."""
        accepted = sum(self.endings[each] for each in ("completed", "incomplete", "failed", "cancelled"))
        equations = {
            "arrived = refused + accepted + pending": (
                self.num_arrived,
                self.endings["refused"] + self.num_accepted + num_pending,
            ),
            "accepted = completed + incomplete + failed + cancelled": (self.num_accepted, accepted),
            "generated = billed + refunded": (self.num_generated, self.num_billed + self.num_refunded),
            "requests in columns": (self.num_ended, sum(len(column.met) for column in self.columns.values())),
        }
        for name, (left, right) in equations.items():
            if left != right:
                raise SimulationError(f"the books do not balance: {name}: {left} is not {right}")
