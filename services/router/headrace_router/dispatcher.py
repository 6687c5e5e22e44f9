"""Takes decisions: picks a replica now, holds the request while one starts, or refuses with a reason and a wait.

Which replica is scoring's business; this module knows what to do when there is none. Knows no message.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait
from headrace_router import prediction
from headrace_router.deadlines import hold_limit_s
from headrace_router.demand import Demand
from headrace_router.fleet_rules import FleetRules, Pool
from headrace_router.replicas import Replica, ReplicaTable
from headrace_router.scoring import Ask, Choice, choose

_refused = telemetry.counter("route_refused_total", "Requests that got no replica, by reason", ["reason"])
# A breaker half opens and a lost lease ends without an event: those who wait look again this often.
_LOOK_AGAIN_S = 0.25
_BUSY_RETRY_S = 1.0
_UNKNOWN_STARTUP_S = 10.0


@dataclass(frozen=True)
class Picked:
    """A replica for a request, and how long the request was held."""

    replica: Replica
    choice: Choice
    held_s: float = 0.0


class Dispatcher:
    def __init__(
        self,
        rules: FleetRules,
        table: ReplicaTable,
        demand: Demand,
        draws: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._table, self._demand, self._draws, self._clock = rules, table, demand, draws, clock
        self.draining = False

    async def pick(self, ask: Ask, total_left_s: float) -> Picked:
        """``total_left_s``: what is left of the client's deadline, 0 = none. Raises HeadraceError."""
        try:
            return await self._pick(ask, total_left_s)
        except HeadraceError as error:
            _refused.labels(error.reason).inc()
            raise

    def predicted_prefill_s(self, ask: Ask, replica: Replica | None = None) -> float:
        """On this replica, or on whichever of the model published last; 0 while nothing is known."""
        known = replica.coefficients if replica else self._table.last_coefficients.get(ask.model, {})
        return prediction.prefill_s(known, ask.num_prompt_tokens)

    async def _pick(self, ask: Ask, total_left_s: float) -> Picked:
        pools = self._serving_pools(ask)
        started = self._clock()
        picked = self._try(ask)
        if picked is not None:
            return picked
        if self._demand.num_held(ask.model) >= max(pool.max_held for pool in pools):
            raise self._no_replica(ask, "as many requests as may be held wait for one already")
        token = object()
        self._demand.held(ask.model, token, started)
        try:
            return await self._hold(ask, pools, started, total_left_s)
        finally:
            self._demand.let_go(ask.model, token)

    async def _hold(self, ask: Ask, pools: list[Pool], started: float, total_left_s: float) -> Picked:
        hold_s = max(pool.hold_s for pool in pools)
        limit = started + hold_limit_s(hold_s, self.predicted_prefill_s(ask), total_left_s)
        while (left_s := limit - self._clock()) > 0 and not self.draining:
            waiting = asyncio.create_task(self._table.changed.wait())
            await asyncio.wait([waiting], timeout=min(left_s, _LOOK_AGAIN_S))
            await cancel_and_wait(waiting)
            picked = self._try(ask)
            if picked is not None:
                return replace(picked, held_s=self._clock() - started)
        if self.draining:
            raise HeadraceError("draining", "this router is stopping", retry_after_s=_BUSY_RETRY_S)
        raise self._no_replica(ask, "none became ready in time")

    def _try(self, ask: Ask) -> Picked | None:
        """A replica now, or None if it is worth waiting for one. Raises HeadraceError if it is not."""
        choice = choose(ask, self._table.views(ask.model), self._draws.random())
        if choice.picked is not None:
            replica = self._table.get(choice.picked.view.id)
            assert replica is not None, "a view was made of a replica of the table"
            replica.breaker.on_pick(self._clock())
            return Picked(replica, choice)
        self._refuse(ask, choice)
        return None

    def _refuse(self, ask: Ask, choice: Choice) -> None:
        """Raises if replicas are ready and none of them can take this request."""
        if choice.filtered("excluded"):
            raise HeadraceError("busy", "every replica that fits has refused", retry_after_s=_BUSY_RETRY_S)
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
