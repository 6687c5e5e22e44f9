"""The arrivals of a declarative workload, in order of time; the same seed gives the same ones on every machine."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from headrace_workload.arrival import Arrival, Segment
from headrace_workload.arrivals import Phase, arrival_times
from headrace_workload.lengths import draw
from headrace_workload.spec import Kind, Workload

_SEEDS = 1 << 40


@dataclass
class _Session:
    """One conversation: who holds it, and what the next prompt begins with."""

    kind: Kind
    tenant: str
    name: str
    num_turns: int
    history: tuple[Segment, ...] = ()
    turn: int = 0
    num_history: int = field(default=0)


def generate(workload: Workload, seed: int) -> Iterator[Arrival]:
    """Every arrival of the workload. Turns of a session that would come after its end are left out."""
    return _Generator(workload, seed).run()


class _Generator:
    def __init__(self, workload: Workload, seed: int) -> None:
        self._workload = workload
        self._rng = Random(f"{workload.name}/{seed}")
        self._times = Random(f"{workload.name}/{seed}/times")
        # A kind with sessions starts fewer of them, so that `rps` counts requests.
        starts = [kind.weight / (kind.sessions.turns if kind.sessions else 1.0) for kind in workload.kinds]
        self._weights = list(accumulate(starts))
        self._share = sum(starts) / sum(kind.weight for kind in workload.kinds)
        self._zipf = {kind: _zipf(kind) for kind in workload.kinds if kind.prefix}
        self._num_sessions = 0

    def run(self) -> Iterator[Arrival]:
        phases = [
            Phase(each.for_s, each.rps * self._share, each.to_rps * self._share) for each in self._workload.phases
        ]
        starts = arrival_times(phases, self._workload.cv, self._times)
        pending: list[tuple[float, int, _Session]] = []
        index, order, next_start = 0, 0, next(starts, None)
        while pending or next_start is not None:
            if next_start is not None and (not pending or next_start <= pending[0][0]):
                at_s, session = next_start, self._open()
                next_start = next(starts, None)
            else:
                at_s, _, session = heapq.heappop(pending)
            yield self._turn(session, index, at_s)
            index += 1
            later_s = at_s + self._think(session)
            if session.turn < session.num_turns and later_s < self._workload.duration_s:
                order += 1
                heapq.heappush(pending, (later_s, order, session))

    def _open(self) -> _Session:
        kind = self._rng.choices(self._workload.kinds, cum_weights=self._weights)[0]
        self._num_sessions += 1
        tenant = kind.tenants[0] if len(kind.tenants) == 1 else self._rng.choice(kind.tenants)
        num_turns = _geometric(kind.sessions.turns, self._rng) if kind.sessions else 1
        session = _Session(kind, tenant, f"s{self._num_sessions}" if kind.sessions else "", num_turns)
        if kind.prefix:
            number = self._rng.choices(range(kind.prefix.count), cum_weights=self._zipf[kind])[0]
            seed = _SEEDS + self._workload.kinds.index(kind) * 1_000_003 + number
            session.history = (Segment(seed, kind.prefix.num_tokens),)
            session.num_history = kind.prefix.num_tokens
        return session

    def _turn(self, session: _Session, index: int, at_s: float) -> Arrival:
        kind, rng = session.kind, self._rng
        num_new = draw(kind.prompt, rng)
        if session.num_history + num_new > kind.max_prompt:
            # As a client would: forget the conversation, keep the new text.
            session.history, session.num_history = (), 0
            num_new = min(num_new, kind.max_prompt)
        num_output = min(kind.max_output, draw(kind.output, rng))
        segments = (*session.history, Segment(rng.randrange(_SEEDS), num_new))
        num_prompt = session.num_history + num_new
        arrival = Arrival(
            *(index, at_s, kind.model, num_prompt, kind.max_output, num_output, segments),
            *(session.tenant, kind.slo_class, session.name, session.turn),
        )
        session.turn += 1
        if kind.sessions:
            session.history = (*segments, Segment(rng.randrange(_SEEDS), num_output))
            session.num_history = num_prompt + num_output
        return arrival

    def _think(self, session: _Session) -> float:
        sessions = session.kind.sessions
        if sessions is None or session.turn >= session.num_turns:
            return 0.0
        return self._rng.expovariate(1 / sessions.think_s) if sessions.think_s else 0.0


def _geometric(mean: float, rng: Random) -> int:
    count = 1
    while rng.random() > 1 / mean:
        count += 1
    return count


def _zipf(kind: Kind) -> list[float]:
    assert kind.prefix is not None, "only kinds with a prefix choose one"
    return list(accumulate(1 / rank**kind.prefix.skew for rank in range(1, kind.prefix.count + 1)))
