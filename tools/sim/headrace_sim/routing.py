"""Which replica: production's score over views of the simulated replicas, as old as load reports are.

The dispatcher around the score (hold while none is ready, refuse with a reason) is asynchronous in production; here it
is the same decisions on the virtual clock. Knows no quota and no step.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from random import Random

from headrace_controlplane.fleet.classes import SloClass
from headrace_router.deadlines import Budget, queue_deadline
from headrace_router.in_flight import InFlight, Sent
from headrace_router.pairing import pair
from headrace_router.prediction import StepCost
from headrace_router.scoring import Ask, Choice, View, choose, num_new_tokens
from headrace_router.shortlist import shortlist
from headrace_sim.clock import Clock
from headrace_sim.fleet import SimPool
from headrace_sim.job import Job
from headrace_sim.prefix_map import PrefixMap
from headrace_sim.replica import Replica
from headrace_worker.scheduling.load import report_load

# A worker reports a changed load after this time at the latest (worker/watch.py).
REPORT_S = 0.05


class Seat:
    """What the router knows of one replica: the view of its last report, and what was sent since."""

    __slots__ = ("classes", "cost", "decisions", "link", "model", "replica", "reported_s", "role", "version", "view")

    def __init__(self, replica: Replica, pool: SimPool, cost: StepCost) -> None:
        settings = pool.settings
        self.replica, self.cost, self.link = replica, cost, pool.link
        self.model, self.classes, self.role = settings.model, settings.classes, settings.role
        self.reported_s = float("-inf")
        self.decisions: list[str] = []
        self.view: View | None = None
        self.version = -1


class Router:
    """All routers in one: they see the same reports. `draws` makes ties deterministic by seed."""

    def __init__(
        self,
        clock: Clock,
        draws: Random,
        prefixes: PrefixMap | None,
        is_cache_blind: bool = False,
        is_queue_first: bool = False,
    ) -> None:
        self._clock, self._draws, self._prefixes = clock, draws, prefixes
        self._is_cache_blind, self._is_queue_first = is_cache_blind, is_queue_first
        self._seats: dict[str, dict[str, Seat]] = {}
        self._listed: dict[str, list[Seat]] = {}
        self._in_flight = InFlight()
        self._num_decisions = 0

    def add(self, seat: Seat) -> None:
        self._seats.setdefault(seat.model, {})[seat.replica.id] = seat
        self._listed.clear()
        if self._prefixes is not None:
            self._prefixes.drop(seat.replica.id)

    def remove(self, replica_id: str) -> None:
        for seats in self._seats.values():
            seats.pop(replica_id, None)
        self._listed.clear()
        self._in_flight.drop_replica(replica_id)
        if self._prefixes is not None:
            self._prefixes.drop(replica_id)

    def seats(self, model: str) -> Sequence[Seat]:
        found = self._listed.get(model)
        if found is None:
            found = self._listed[model] = list(self._seats.get(model, {}).values())
        return found

    def choose(self, ask: Ask, job: Job, left_s: float) -> Choice:
        """Production's decision over the views as they stand now: of some of a large fleet, if they will do."""
        hits: dict[str, int] = {}
        if self._prefixes is not None and not self._is_cache_blind:
            hits = self._prefixes.hits(job.prompt_ids, self._seats.get(ask.model, ()))
        seats = self.seats(ask.model)
        held = {at: hits[seat.replica.id] for at, seat in enumerate(seats) if seat.replica.id in hits} if hits else {}
        places = shortlist(len(seats), held, ask.session, self._draws)
        choice = self._choose(ask, [seats[at] for at in places], hits)
        if len(places) == len(seats) or (choice.picked and self.wait_s(ask, choice, left_s) is not None):
            return choice
        return self._choose(ask, seats, hits)

    def _choose(self, ask: Ask, seats: Sequence[Seat], hits: Mapping[str, int]) -> Choice:
        now = self._clock.now
        views = [self._view(seat, now, hits.get(seat.replica.id, 0)) for seat in seats]
        return choose(ask, views, self._draws.random())

    def wait_s(self, ask: Ask, choice: Choice, left_s: float) -> float | None:
        """The queue deadline at the picked replica; None if the prompts ahead take longer, wherever it went."""
        if self._is_queue_first:
            return left_s or ask.budget.ttft_s
        assert choice.picked is not None, "there is somebody to wait at"
        wait_s = _deadline_s(ask, choice.picked.view, left_s)
        if choice.picked.view.queue_s <= wait_s:
            return wait_s
        is_in_time = any(view.queue_s <= _deadline_s(ask, view, left_s) for view in choice.scored)
        return wait_s if is_in_time else None

    def sent(self, ask: Ask, choice: Choice, job: Job) -> Replica:
        """Count the decision as unseen until a report would list it; the job learns who prefills for it."""
        assert choice.picked is not None, "what is sent is sent to somebody"
        view = choice.picked.view
        self._num_decisions += 1
        job.decision_id = str(self._num_decisions)
        seat = self._seats[ask.model][view.id]
        seat.decisions.append(job.decision_id)
        job.prefill_id = self._paired(ask, view, choice, seat)
        new = 1 if job.prefill_id else num_new_tokens(ask, view)
        self._in_flight.add(Sent(job.decision_id, view.id, "1", self._clock.now, new, ask.num_bound_tokens))
        unseen = self._in_flight.unseen(view.id, self._clock.now)
        assert seat.view is not None, "who is picked was looked at"
        seat.view = seat.view._replace(
            num_unseen=unseen.num_requests,
            num_unseen_tokens=unseen.num_new_tokens,
            num_unseen_bound_tokens=unseen.num_bound_tokens,
        )
        return seat.replica

    def _paired(self, ask: Ask, view: View, choice: Choice, seat: Seat) -> str:
        """Who should prefill for the picked replica; empty: nobody."""
        if view.role != "decode":
            return ""
        prefills = [each.view for each in choice.candidates if each.view.role == "prefill"]
        found = pair(ask, view, prefills, seat.link).prefill
        return "" if found is None else found.id

    def ended(self, job: Job) -> None:
        self._in_flight.release(job.decision_id)

    def _view(self, seat: Seat, now: float, num_hit_tokens: int) -> View:
        view = seat.view
        if view is None or now - seat.reported_s >= REPORT_S or view.state != seat.replica.state:
            view = self._report(seat, now)
        return view._replace(num_hit_tokens=num_hit_tokens) if num_hit_tokens else view

    def _report(self, seat: Seat, now: float) -> View:
        replica = seat.replica
        seat.reported_s = now
        if seat.view is not None and seat.version == replica.version and seat.view.state == replica.state:
            return seat.view  # nothing has happened there
        seat.version = replica.version
        self._in_flight.seen(replica.id, seat.decisions)
        seat.decisions.clear()
        limits, load = replica.make.limits, report_load(replica.scheduler, now)
        page = limits.page_tokens
        seat.view = View(
            *(replica.id, "1", seat.model, "1", seat.role, seat.classes, True, True, limits.max_sequence_tokens),
            *(load.num_running, load.num_waiting, limits.max_waiting, load.num_queued_tokens),
            *(load.num_held_pages * page, load.num_promised_pages * page, load.num_total_pages * page),
            state="ready" if replica.state == "ready" else replica.state,
            num_in_flight=self._in_flight.num_open(replica.id),
            num_recent_tokens=self._in_flight.num_recent_tokens(replica.id, now),
            cost=seat.cost,
        )
        events = replica.scheduler.pool.events.drain()
        if self._prefixes is not None:
            self._prefixes.take(replica.id, events)
        return seat.view


def _deadline_s(ask: Ask, view: View, left_s: float) -> float:
    new = num_new_tokens(ask, view)
    predicted_s = view.cost.prefill_s(new, ask.num_prompt_tokens - new)
    return queue_deadline(ask.budget, predicted_s, left_s=left_s).wait_s


class HoldRoom:
    """Requests of one model while no replica is ready: at most `most`, each for at most its own time (decision 16)."""

    def __init__(self, clock: Clock, most: int, on_expired: Callable[[Job], None]) -> None:
        self._clock, self._most, self._on_expired = clock, most, on_expired
        self._held: OrderedDict[Job, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest_s(self) -> float | None:
        """Since when the longest held one is here."""
        return next(iter(self._held.values()), None)

    def hold(self, job: Job, for_s: float) -> bool:
        """False if there is no room."""
        if len(self._held) >= self._most:
            return False
        self._held[job] = self._clock.now
        self._clock.after(for_s, self._expire, job, self._clock.now)
        return True

    def take(self) -> list[Job]:
        """All of them, in order: somebody is ready."""
        jobs = list(self._held)
        self._held.clear()
        return jobs

    def _expire(self, job: Job, since_s: float) -> None:
        if self._held.get(job) == since_s:
            del self._held[job]
            self._on_expired(job)


def budget_of(slo: SloClass) -> Budget:
    """A class of fleet.yaml in seconds."""
    ttft_s, max_queue_s = slo.ttft_ms / 1000, slo.max_queue_ms / 1000
    return Budget(ttft_s, max_queue_s, slo.delivery_reserve_ms / 1000, slo.inter_token_ms / 1000, slo.statistical)
