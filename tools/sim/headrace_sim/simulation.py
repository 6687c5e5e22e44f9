"""One run: arrivals through quota, router and replicas to their one ending, with scaling and faults beside them.

    arrival -> Quotas.admit -> Router.choose -> Replica.submit -> ... -> ended -> Quotas.settle -> Books

The same fleet, workload, options and seed give the same run to the last digit. Conservation is checked in every run:
requests and tokens in the books, pages in every scheduler.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from headrace_controlplane.autoscale import ScaleState
from headrace_router.deadlines import Budget
from headrace_router.scoring import Ask
from headrace_sim.assembly import VOCAB, Options, cost_of, make_of, prefix_map, replica_of
from headrace_sim.books import Books, Column
from headrace_sim.clock import Clock
from headrace_sim.depot import Depot
from headrace_sim.errors import SimulationError
from headrace_sim.fleet import Fault, SimFleet, SimPool
from headrace_sim.hand_offs import HandOffs
from headrace_sim.job import Job
from headrace_sim.quotas import Quotas
from headrace_sim.replica import Replica
from headrace_sim.routing import HoldRoom, Router, Seat, budget_of
from headrace_sim.scaling import TICK_S, Forecaster, Scaled
from headrace_sim.timeline import Timeline
from headrace_worker.scheduling.audit import audit
from headrace_worker.scheduling.request import HandOff, Request, SamplingParams
from headrace_workload.arrival import Arrival
from headrace_workload.prompts import TokenTable

_MOST_TRIES = 3
_NO_IDS = array("I")
_SAMPLING = SamplingParams()


@dataclass
class Outcome:
    """All that a run leaves behind."""

    fleet: SimFleet
    books: Books
    timeline: Timeline
    depot: Depot
    scaled: dict[str, Scaled]
    duration_s: float
    """Until the last request ended."""
    num_steps: int
    hand_offs: HandOffs


class Simulation:
    """Built from a fleet; `run` takes the arrivals. `forecasters` and `capacities` are by pool."""

    def __init__(
        self,
        fleet: SimFleet,
        options: Options,
        forecasters: dict[str, Forecaster] | None = None,
        capacities: dict[str, float] | None = None,
    ) -> None:
        self.clock, self.fleet, self.options = Clock(), fleet, options
        self.books, self.timeline = Books(), Timeline()
        self._table = TokenTable(VOCAB)
        self._blank = array("I")
        self._budgets = {name: budget_of(slo) for name, slo in fleet.fleet.classes.items()}
        prefixes = prefix_map(fleet) if options.shares_prefixes else None
        self.router = Router(
            self.clock, Random(f"draws/{options.seed}"), prefixes, options.cache_blind, options.queue_first
        )
        self.quotas = Quotas(fleet.fleet.tenants)
        self._makes = {name: make_of(pool, options) for name, pool in fleet.pools.items()}
        self._costs = {name: cost_of(pool) for name, pool in fleet.pools.items()}
        nodes = fleet.section.nodes
        self.hand_offs = HandOffs(self.clock, {name: pool.link for name, pool in fleet.pools.items()}, self._replica)
        self.depot = Depot(self.clock, fleet.pools, nodes, self._build, self._on_ready)
        self._rooms = {model: self._room(model) for model in fleet.fleet.models}
        self.scaled = {
            name: self._scale(pool, (forecasters or {}).get(name), (capacities or {}).get(name))
            for name, pool in fleet.pools.items()
            if pool.section.scaling is not None
        }
        self._front_s = {
            model: max((pool.section.front_ms for pool in self._pools_of(model)), default=0.0) / 1000
            for model in fleet.fleet.models
        }
        self._num_handles = 0
        self._num_pending = self._num_coming = 0
        self._ended_s = 0.0
        self._num_new = 0
        self._blind_until_s = 0.0
        self._arrivals: Iterator[Arrival] = iter(())
        self._is_over = False
        self._on_closed: Callable[[Job], Arrival | None] | None = None

    def run(self, arrivals: Iterable[Arrival], on_closed: Callable[[Job], Arrival | None] | None = None) -> Outcome:
        """To the end of the last request (or the last arrival).

        `on_closed` makes a closed loop: what it returns for a request that ended arrives next.
        """
        self._arrivals, self._on_closed = iter(arrivals), on_closed
        self.depot.start_initial()
        self._next_arrival()
        for fault in self.fleet.section.faults:
            self.clock.at(fault.at_s, self._strike, fault)
        self.clock.at(0.0, self._tick)
        self.clock.run()
        self.books.check(self._num_pending)
        self.hand_offs.check()
        self._audit()
        replicas = [*self.depot.past, *(entry.replica for entry in self.depot.entries.values())]
        num_steps = sum(each.num_steps for each in replicas)
        return Outcome(
            self.fleet, self.books, self.timeline, self.depot, self.scaled, self._ended_s, num_steps, self.hand_offs
        )

    # Requests

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._is_over = True
            return
        self.clock.at(arrival.at_s, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._next_arrival()
        self._enter(arrival)

    def _come_back(self, arrival: Arrival) -> None:
        self._num_coming -= 1
        self._enter(arrival)

    def _enter(self, arrival: Arrival) -> None:
        if arrival.model not in self.fleet.fleet.models:
            arrival = arrival._replace(model=self._only_model(arrival.model))
        job = Job(arrival, self._class_of(arrival), num_left=arrival.num_output)
        self.books.num_arrived += 1
        self._num_pending += 1
        self._num_new += 1
        for scaled in self.scaled.values():
            if self.fleet.pools[scaled.pool].settings.model == arrival.model:
                scaled.note(arrival.num_prompt + arrival.max_output)
        reason = self.quotas.admit(job, self._tenant(arrival), self.clock.now)
        if reason is not None:
            self._refuse(job, reason, settles=False)
            return
        job.prompt_ids = self._prompt_ids(arrival)
        if front_s := self._front_s[arrival.model]:
            self.clock.after(front_s, self._route, job)
        else:
            self._route(job)

    def _route(self, job: Job) -> None:
        ask, now = self._ask(job), self.clock.now
        left_s = 0.0 if job.deadline_s is None else max(1e-3, job.deadline_s - now)
        choice = self.router.choose(ask, job, left_s)
        if choice.picked is None:
            is_full = bool(choice.filtered("full") or choice.filtered("excluded"))
            self._refuse_or_hold(job, is_full, bool(choice.filtered("context")))
            return
        wait_s = self.router.wait_s(ask, choice, left_s)
        if wait_s is None:
            self._refuse(job, "queue_deadline")
            return
        job.deadline_s = job.deadline_s or now + wait_s
        job.num_tries += 1
        job.handle = self._num_handles = self._num_handles + 1
        replica = self.router.sent(ask, choice, job)
        replica.submit(job, self._request(job, ask.budget, wait_s))

    def _request(self, job: Job, budget: Budget, wait_s: float) -> Request:
        arrival = job.arrival
        tenant = self.fleet.fleet.tenants.get(self._tenant(arrival))
        return Request(
            handle=job.handle,
            response_id=str(job.handle),
            attempt=job.attempt,
            prompt_ids=job.prompt_ids,
            max_output=arrival.max_output,
            sampling=_SAMPLING,
            queue_deadline_s=wait_s,
            inter_token_s=budget.inter_token_s or None,
            hand_off=HandOff.RECEIVE if job.prefill_id else HandOff.NONE,
            fair_key=self._tenant(arrival),
            weight=tenant.weight if tenant else 1.0,
            statistical=self.options.optimistic or self.fleet.fleet.classes[job.slo_class].statistical,
        )

    def _prompt_ids(self, arrival: Arrival) -> "array[int]":
        """Where no prompt is compared with another, any ids will do."""
        if self.options.shares_prefixes:
            return self._table.ids(arrival.segments)
        if len(self._blank) < arrival.num_prompt:
            self._blank = array("I", bytes(8 * arrival.num_prompt))
        return self._blank[: arrival.num_prompt]

    def _refuse_or_hold(self, job: Job, is_full: bool, is_short: bool) -> None:
        if is_full or is_short:
            self._refuse(job, "busy" if is_full else "context_length_exceeded")
            return
        hold_s = max(pool.settings.hold_s for pool in self._pools_of(job.arrival.model))
        if not self._rooms[job.arrival.model].hold(job, hold_s):
            self._refuse(job, "no_replica")

    def _refuse(self, job: Job, reason: str, settles: bool = True) -> None:
        job.ending, job.reason, job.ended_s = "refused", reason, self.clock.now
        self._close(job, settles)

    def _on_ended(self, job: Job) -> None:
        """A replica is done with a job."""
        self.router.ended(job)
        if job.ending == "refused" and job.reason in ("busy", "share_exceeded") and job.num_tries < _MOST_TRIES:
            job.ending, job.excluded = "", job.excluded | {job.replica_id}
            self._route(job)
        elif job.reason == "prefill_lost" and job.attempt == 1:
            self._try_again(job, job.prefill_id)
        else:
            self._close(job)

    def _close(self, job: Job, settles: bool = True) -> None:
        if settles:
            self.quotas.settle(job, self._tenant(job.arrival), self.clock.now)
        left_s = self.clock.now if job.accepted_s is None else job.accepted_s
        job.queue_s = left_s - job.arrival.at_s
        job.prompt_ids = _NO_IDS
        self._num_pending -= 1
        self._ended_s = self.clock.now
        self.books.end(job, self._column(job))
        if self._on_closed is not None and (following := self._on_closed(job)) is not None:
            self._num_coming += 1
            self.clock.at(following.at_s, self._come_back, following)

    # Replicas

    def _room(self, model: str) -> HoldRoom:
        most = max((pool.settings.max_held for pool in self._pools_of(model)), default=0)
        return HoldRoom(self.clock, most, lambda job: self._refuse(job, "no_replica"))

    def _scale(self, pool: SimPool, forecaster: Forecaster | None, capacity: float | None) -> Scaled:
        section, policy = pool.section.scaling, pool.scale_policy
        assert section is not None and policy is not None, "only pools with a scaling section are scaled"
        found = section.capacity or capacity
        if not found:
            raise SimulationError(f"simulation.pools.{pool.name}.scaling.capacity is neither given nor searched")
        room = self._rooms[pool.settings.model]
        return Scaled(
            pool=pool.name,
            policy=policy,
            start_up_s=pool.start_up_s,
            capacity=found,
            forecaster=forecaster,
            oldest_wait_s=lambda: self._oldest_wait_s(pool.name),
            num_held=lambda: len(room),
            replicas=lambda: self.depot.of(pool.name),
            state=ScaleState(pool.num_initial),
        )

    def _oldest_wait_s(self, pool: str) -> float:
        waits = (each.scheduler.room.oldest_arrival_s() for each in self.depot.of(pool) if not each.is_gone)
        return max((self.clock.now - since for since in waits if since is not None), default=0.0)

    def _build(self, replica_id: str, pool: SimPool) -> Replica:
        return replica_of(replica_id, pool.name, self._makes[pool.name], self.clock, self._on_ended, self.hand_offs)

    def _replica(self, replica_id: str) -> Replica | None:
        entry = self.depot.entries.get(replica_id)
        return None if entry is None else entry.replica

    def _on_ready(self, replica: Replica) -> None:
        pool = self.fleet.pools[replica.pool]
        self.router.add(Seat(replica, pool, self._costs[pool.name]))
        if pool.settings.role == "prefill":
            return
        for job in self._rooms[pool.settings.model].take():
            self._route(job)

    def _lose(self, replica: Replica) -> None:
        """A dead replica: what had shown no token moves once, the rest fails."""
        self.depot.kill(replica)
        lost = replica.kill()
        self.router.remove(replica.id)
        for job in lost:
            self.router.ended(job)
            if job.first_s is None and job.attempt == 1:
                self._try_again(job, replica.id)
            else:
                job.ending, job.reason, job.ended_s = "failed", "worker_lost", self.clock.now
                if job.accepted_s is None:
                    job.ending = "refused"
                self._close(job)
        self.hand_offs.lose(replica)

    def _try_again(self, job: Job, without: str) -> None:
        """As the next attempt of the same response."""
        job.ending, job.attempt, job.excluded = "", 2, frozenset({without})
        job.num_left = job.arrival.num_output
        self._route(job)

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "blind":
            self._blind_until_s = self.clock.now + fault.for_s
            return
        pools = [fault.pool] if fault.pool else list(self.fleet.pools)
        ready = [each for pool in pools for each in self.depot.of(pool) if each.state == "ready"]
        for replica in ready[: fault.count]:
            if fault.kind == "kill":
                self._lose(replica)
            elif fault.kind == "drain":
                replica.drain()
            else:
                replica.slowness = fault.factor
                self.clock.after(fault.for_s, setattr, replica, "slowness", 1.0)

    # Each second

    def _tick(self) -> None:
        now = self.clock.now
        for (name, scaled), share in zip(self.scaled.items(), self.depot.shares(self.scaled), strict=True):
            self.depot.targets[name] = scaled.tick(now, now < self._blind_until_s, share)
        self.depot.reconcile()
        for replica in self.depot.sweep():
            self.router.remove(replica.id)
        self._sample(now)
        if self._is_over and (self._num_pending + self._num_coming == 0 or not self.options.drain):
            self.clock.stop()
            return
        self.clock.after(min(TICK_S, self.options.sample_s), self._tick)

    def _sample(self, now: float) -> None:
        replicas = [each.replica for each in self.depot.entries.values() if not each.replica.is_gone]
        schedulers = [each.scheduler for each in replicas]
        total = sum(each.pool.num_pages for each in schedulers) or 1
        for each in schedulers:
            if not each.ledger.holds():
                raise SimulationError("pages were promised that are not there")
        ages = [now - since for each in schedulers if (since := each.room.oldest_arrival_s()) is not None]
        ages += [now - since for room in self._rooms.values() if (since := room.oldest_s) is not None]
        self.timeline.add(
            now,
            arrivals=self._num_new,
            ready=sum(each.state == "ready" for each in replicas),
            wanted=sum(self.depot.targets.values()),
            running=sum(each.running.num_choices for each in schedulers),
            waiting=sum(len(each.room) for each in schedulers) + sum(len(room) for room in self._rooms.values()),
            held_share=sum(each.pool.num_held for each in schedulers) / total,
            promised_share=sum(each.ledger.num_promised for each in schedulers) / total,
            queue_age_s=max(ages, default=0.0),
        )
        self._num_new = 0

    # Look-ups

    def _ask(self, job: Job) -> Ask:
        arrival = job.arrival
        return Ask(
            model=arrival.model,
            slo_class=job.slo_class,
            budget=self._budgets[job.slo_class],
            num_prompt_tokens=arrival.num_prompt,
            max_output_tokens=arrival.max_output,
            excluded=job.excluded,
            session=arrival.session,
            fair_key=self._tenant(arrival),
        )

    def _tenant(self, arrival: Arrival) -> str:
        return arrival.tenant or next(iter(self.fleet.fleet.tenants))

    def _class_of(self, arrival: Arrival) -> str:
        fleet = self.fleet.fleet
        tenant = fleet.tenants.get(self._tenant(arrival))
        name = arrival.slo_class or (tenant.slo_class if tenant else "") or fleet.default_class
        if name not in fleet.classes:
            raise SimulationError(f"the workload names a class {name!r} that the fleet does not have")
        return name

    def _only_model(self, asked: str) -> str:
        models = list(self.fleet.fleet.models)
        if len(models) == 1 and not asked:
            return models[0]
        raise SimulationError(f"the workload names a model {asked!r}; the fleet has {', '.join(models)}")

    def _pools_of(self, model: str) -> list[SimPool]:
        return [pool for pool in self.fleet.pools.values() if pool.settings.model == model]

    def _column(self, job: Job) -> Column:
        place = (job.arrival.model, job.slo_class)
        if place not in self.books.columns:
            slo = self.fleet.fleet.classes[job.slo_class]
            self.books.columns[place] = Column(slo.ttft_ms, slo.inter_token_ms)
        return self.books.columns[place]

    def _audit(self) -> None:
        for entry in self.depot.entries.values():
            if not entry.replica.is_gone and (found := audit(entry.replica.scheduler)):
                raise SimulationError(f"the pages of {entry.replica.id} do not balance: {found[0]}")
