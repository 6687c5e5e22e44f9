"""A closed loop: so many users, each of whom sends the next request when the last one has ended. As load tests do."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headrace_sim.job import Job
from headrace_workload.arrival import Arrival, Segment
from headrace_workload.lengths import Lengths, draw


@dataclass
class ClosedLoop:
    """`num_requests` in all; all users send their first at time 0. Hand `first` and `after` to `Simulation.run`."""

    model: str
    prompt: Lengths
    output: Lengths
    num_users: int
    num_requests: int
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = Random(f"closed/{self.seed}")
        self._num_sent = 0

    def first(self) -> Iterator[Arrival]:
        for _ in range(min(self.num_users, self.num_requests)):
            yield self._next(0.0)

    def after(self, job: Job) -> Arrival | None:
        """What the user of this job sends next."""
        return self._next(job.ended_s) if self._num_sent < self.num_requests else None

    def _next(self, at_s: float) -> Arrival:
        number, self._num_sent = self._num_sent, self._num_sent + 1
        num_prompt, num_output = draw(self.prompt, self._rng), draw(self.output, self._rng)
        segment = Segment(self._rng.randrange(1 << 40), num_prompt)
        return Arrival(number, at_s, self.model, num_prompt, num_output, num_output, (segment,))
