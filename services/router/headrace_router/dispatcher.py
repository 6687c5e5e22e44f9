"""Takes decisions: picks a replica now, holds the request while one starts, or refuses with a reason and a wait.

Which replica is scoring's business; this module knows what to do when there is none. Knows no message.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait
from headrace_router.deadlines import hold_limit_s, queue_deadline
from headrace_router.demand import Demand
from headrace_router.fleet_rules import FleetRules, Pool
from headrace_router.pairing import pair
from headrace_router.prediction import UNKNOWN
from headrace_router.prefix_index import PrefixIndex
from headrace_router.replicas import Replica, ReplicaTable
from headrace_router.scoring import Ask, Choice, View, choose, num_new_tokens
from headrace_router.trials import Arm

_refused = telemetry.counter("route_refused_total", "Requests that got no replica, by reason", ["reason"])
# A breaker half opens and a lost lease ends without an event: those who wait look again this often.
_LOOK_AGAIN_S = 0.25
_BUSY_RETRY_S = 1.0
_UNKNOWN_STARTUP_S = 10.0
# One fairness key may fill this share of the hold room, as of a worker's waiting room.
_SHARE = 0.5


@dataclass(frozen=True)
class Limits:
    """What is left of an earlier attempt's queue deadline and of the client's deadline, in seconds; 0 = none."""

    queue_s: float = 0.0
    total_s: float = 0.0


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Picked:
    """A replica for a request, and how long the request was held."""

    replica: Replica
    choice: Choice
    held_s: float = 0.0
    prefill: Replica | None = None
    """Who computes the prompt for it, if that pays."""
    pairing: str = ""

    @property
    def view(self) -> View:
        assert self.choice.picked is not None, "a decision has a replica"
        return self.choice.picked.view


class Dispatcher:
    def __init__(
        self,
        rules: FleetRules,
        table: ReplicaTable,
        demand: Demand,
        index: PrefixIndex,
        draws: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._table, self._demand, self._index = rules, table, demand, index
        self._draws, self._clock = draws, clock
        self.draining = False

    async def pick(self, ask: Ask, limits: Limits = NO_LIMITS, chain: bytes = b"") -> Picked:
        """``chain``: chain values of the prompt's full blocks. Raises HeadraceError."""
        try:
            return await self._pick(ask, limits, chain)
        except HeadraceError as error:
            _refused.labels(error.reason).inc()
            raise

    def predicted_prefill_s(self, ask: Ask, view: View | None = None) -> float:
        """Of what is not cached on this replica, or of all on whichever published last; 0 while nothing is known."""
        if view is None:
            return self._table.last_cost.get(ask.model, UNKNOWN).prefill_s(ask.num_prompt_tokens)
        num_new = num_new_tokens(ask, view)
        return view.cost.prefill_s(num_new, ask.num_prompt_tokens - num_new)

    async def _pick(self, ask: Ask, limits: Limits, chain: bytes) -> Picked:
        pools = self._serving_pools(ask)
        started = self._clock()
        hits = await self._index.hits(chain, self._table.groups(ask.model)) if chain else {}
        picked = self._try(ask, hits, limits)
        if picked is not None:
            return picked
        self._check_room(ask, max(pool.max_held for pool in pools))
        token = object()
        self._demand.held(ask, token, started)
        try:
            # Who waits does so for the model's own revision: a trial gets what it can serve at once.
            return await self._hold(replace(ask, on_trial=""), max(pool.hold_s for pool in pools), started, limits)
        finally:
            self._demand.let_go(ask.model, token)

    def _check_room(self, ask: Ask, most: int) -> None:
        """Raises if one more request may not be held: its key's own share first (decision 9), then the room."""
        share = max(1, int(most * _SHARE))
        if ask.fair_key and most > 0 and self._demand.num_held(ask.model, ask.fair_key) >= share:
            message = f"{share} of your requests wait for a replica of {ask.model} already"
            raise HeadraceError("share_exceeded", message, retry_after_s=self._startup_left_s(ask.model))
        if self._demand.num_held(ask.model) >= most:
            raise self._no_replica(ask, "as many requests as may be held wait for one already")

    async def _hold(self, ask: Ask, hold_s: float, started: float, limits: Limits) -> Picked:
        limit = started + hold_limit_s(hold_s, self.predicted_prefill_s(ask), limits.total_s)
        while (left_s := limit - self._clock()) > 0 and not self.draining:
            waiting = asyncio.create_task(self._table.changed.wait())
            await asyncio.wait([waiting], timeout=min(left_s, _LOOK_AGAIN_S))
            await cancel_and_wait(waiting)
            picked = self._try(ask, {}, limits)
            if picked is not None:
                return replace(picked, held_s=self._clock() - started)
        if self.draining:
            raise HeadraceError("draining", "this router is stopping", retry_after_s=_BUSY_RETRY_S)
        raise self._no_replica(ask, "none became ready in time")

    def _try(self, ask: Ask, hits: Mapping[bytes, int], limits: Limits) -> Picked | None:
        """A replica now, or None if it is worth waiting for one. Raises HeadraceError if it is not."""
        choice = self._choice(ask, hits, limits)
        if choice.picked is None:
            self._refuse(ask, choice)
            return None
        if late_s := self._late_s(ask, choice, limits):
            message = f"the queue of every replica of {ask.model} is longer than the request may wait"
            raise HeadraceError("queue_deadline", message, retry_after_s=max(0.1, late_s))
        return self._sent(ask, choice)

    def _choice(self, ask: Ask, hits: Mapping[bytes, int], limits: Limits) -> Choice:
        """Of some replicas of a large fleet; of all where none of those will do, or a trial has few of its own."""
        if ask.on_trial:
            views = self._table.views(ask.model, hits)
            return self._on_trial(ask, views, limits) or choose(ask, views, self._draws.random())
        views = self._table.some_views(ask.model, hits, ask.session, self._draws)
        choice = choose(ask, views, self._draws.random())
        is_whole = len(views) == len(self._table.of_model(ask.model))
        if is_whole or (choice.picked is not None and not self._late_s(ask, choice, limits)):
            return choice
        return choose(ask, self._table.views(ask.model, hits), self._draws.random())

    def _sent(self, ask: Ask, choice: Choice) -> Picked:
        assert choice.picked is not None, "somebody was picked"
        replica = self._table.get(choice.picked.view.id)
        assert replica is not None, "a view was made of a replica of the table"
        replica.breaker.on_pick(self._clock())
        return self._paired(ask, Picked(replica, choice))

    def _paired(self, ask: Ask, picked: Picked) -> Picked:
        """With whoever should prefill for it, among those with the same KV."""
        if picked.view.role != "decode":
            return picked
        context = picked.replica.description.kv_context if picked.replica.description is not None else b""
        prefills = self._table.prefill_views(ask.model, context, self._draws)
        pairing = pair(ask, picked.view, prefills, self._table.link(picked.view.id))
        prefill = self._table.get(pairing.prefill.id) if pairing.prefill is not None else None
        return replace(picked, prefill=prefill, pairing=pairing.why)

    def _on_trial(self, ask: Ask, views: Sequence[View], limits: Limits) -> Choice | None:
        """A replica of the revision on trial if one can serve the request now; if none can, the others do."""
        choice = choose(replace(ask, revisions=frozenset({ask.on_trial})), views, self._draws.random())
        if choice.picked is not None:
            return None if self._late_s(ask, choice, limits) else choice
        canary = self._rules.revisions(ask.model).canary
        if canary is not None and choice.filtered("breaker"):
            self._demand.outcomes.turned_away(Arm(ask.model, canary.revision, canary.trial))
        return None

    def _late_s(self, ask: Ask, choice: Choice, limits: Limits) -> float:
        """How much longer the prompts ahead take than the request may wait, wherever it went; 0: somewhere in time.

        It is what it takes until they would not, if nobody else comes.
        """
        late_s = []
        for view in choice.scored:
            deadline = queue_deadline(
                ask.budget, self.predicted_prefill_s(ask, view), left_s=limits.queue_s, total_left_s=limits.total_s
            )
            if view.queue_s <= deadline.wait_s:
                return 0.0
            late_s.append(view.queue_s - deadline.wait_s)
        return min(late_s)

    def _refuse(self, ask: Ask, choice: Choice) -> None:
        """Raises if replicas are ready and none of them can take this request."""
        if choice.filtered("excluded"):
            raise HeadraceError("busy", "every replica that fits has refused", retry_after_s=_BUSY_RETRY_S)
        if full := choice.filtered("full"):
            waits = [view.queue_s / max(1, view.num_waiting) for view in full]
            message = f"the waiting room of every replica of {ask.model} is full"
            raise HeadraceError("busy", message, retry_after_s=max(_BUSY_RETRY_S, min(waits)))
        if broken := choice.filtered("breaker"):
            now = self._clock()
            waits = [r.breaker.retry_after_s(now) for view in broken if (r := self._table.get(view.id))]
            message = "every replica that fits is failing"
            raise HeadraceError("no_replica", message, retry_after_s=max(0.1, min(waits, default=_BUSY_RETRY_S)))
        if short := choice.filtered("context"):
            most = max(view.max_context_tokens for view in short)
            message = f"{ask.num_tokens} tokens of prompt and output are over the {most} that a replica takes"
            raise HeadraceError("context_length_exceeded", message, field="bounds")
        if choice.filtered("features"):
            raise HeadraceError("invalid_argument", "no replica of the model can do this", field="features")

    def _serving_pools(self, ask: Ask) -> list[Pool]:
        pools = self._rules.pools_of(ask.model)
        if not pools and not self._rules.known:
            raise HeadraceError("no_replica", "this router has just started and knows no model yet", retry_after_s=1.0)
        if not pools:
            raise HeadraceError("model_not_found", f'there is no model "{ask.model}"')
        serving = [pool for pool in pools if not pool.classes or ask.slo_class in pool.classes]
        if not serving:
            raise HeadraceError("invalid_argument", f"no pool of {ask.model} serves this class", field="slo_class")
        able = [pool for pool in serving if pool.max_replicas > 0 or self._table.of_model(ask.model)]
        if not able:
            raise HeadraceError("no_replica", f"the fleet keeps no replica of {ask.model}")
        return able

    def _no_replica(self, ask: Ask, detail: str) -> HeadraceError:
        message = f"no replica of {ask.model} is ready: {detail}"
        return HeadraceError("no_replica", message, retry_after_s=self._startup_left_s(ask.model))

    def _startup_left_s(self, model: str) -> float:
        """What is left of a start-up as long as the last one, of the replica that started first."""
        whole_s = self._table.startup_s.get(model, _UNKNOWN_STARTUP_S)
        now = self._clock()
        ages = [now - r.first_seen for r in self._table.of_model(model) if r.state in ("loading", "warming")]
        return max(1.0, whole_s - max(ages, default=0.0))
