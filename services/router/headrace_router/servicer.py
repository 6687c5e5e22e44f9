"""``headrace.v1.Router``: requests in, decisions out, outcomes back. Knows no replica's connection."""

import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

from headrace.v1 import response_pb2, routing_pb2, routing_pb2_grpc
from headrace.v1.prefix_chain import DIGEST_BYTES
from headrace_kit import telemetry, tracing
from headrace_kit.errors import HeadraceError
from headrace_router import breaker, decisions
from headrace_router.deadlines import queue_deadline
from headrace_router.decisions import Asked, Decision, DecisionLog, Record
from headrace_router.demand import Demand
from headrace_router.dispatcher import Dispatcher, Limits, Picked
from headrace_router.fleet_rules import FleetRules
from headrace_router.in_flight import InFlight, Sent
from headrace_router.replicas import ReplicaTable
from headrace_router.scoring import Ask, num_new_tokens
from headrace_router.trials import Arm, Ending

log = logging.getLogger(__name__)
OUTCOMES = ("completed", "incomplete", "cancelled", "refused", "failed", "lost")
_decided = telemetry.counter("route_decisions_total", "Decisions by whether the request was held", ["held"])
_seconds = telemetry.histogram("route_seconds", "Time to a decision of requests that were not held")
_reported = telemetry.counter("route_outcomes_total", "Outcomes of attempts", ["outcome"])


class RouterServicer(routing_pb2_grpc.RouterServicer):
    def __init__(
        self,
        rules: FleetRules,
        table: ReplicaTable,
        in_flight: InFlight,
        dispatcher: Dispatcher,
        demand: Demand,
        log_of_decisions: DecisionLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._table, self._in_flight = rules, table, in_flight
        self._dispatcher, self._demand, self._decisions, self._clock = dispatcher, demand, log_of_decisions, clock
        self._jitter = random.Random()

    async def Route(self, request: Any, context: Any) -> routing_pb2.RouteResponse:
        self._in_flight.gateways.heard(request.gateway_id)
        started, ask = self._clock(), _to_ask(request, self._rules)
        self._demand.arrived(ask)
        limits = Limits(request.queue_deadline_ms / 1000, request.total_deadline_ms / 1000)
        picked = await self._dispatcher.pick(ask, limits, request.chain)
        _decided.labels("yes" if picked.held_s else "no").inc()
        if not picked.held_s:
            _seconds.observe(self._clock() - started)
        return self._decide(request, ask, picked)

    async def Report(self, request: Any, context: Any) -> routing_pb2.ReportResponse:
        for outcome in request.outcomes:
            if outcome.outcome not in OUTCOMES:
                message = f'expected one of {", ".join(OUTCOMES)}, got "{outcome.outcome}"'
                raise HeadraceError("invalid_argument", message, field="outcomes.outcome")
        self._in_flight.gateways.heard(request.gateway_id)
        for outcome in request.outcomes:
            self.settle(outcome)
        return routing_pb2.ReportResponse()

    async def Explain(self, request: Any, context: Any) -> routing_pb2.ExplainResponse:
        entry = self._decisions.get(request.decision_id)
        if entry is None:
            message = f'this router does not know decision "{request.decision_id}" (any more)'
            raise HeadraceError("invalid_argument", message, field="decision_id")
        return entry.explanation()

    def _decide(self, request: Any, ask: Ask, picked: Picked) -> routing_pb2.RouteResponse:
        replica, view, now = picked.replica, picked.view, self._clock()
        decision_id, why = secrets.token_hex(8), decisions.sentence(picked.choice, picked.pairing)
        ref = response_pb2.ReplicaRef(id=view.id, epoch=view.epoch, endpoint=replica.row.ref.endpoint)
        num_new = num_new_tokens(ask, view)
        num_here = num_new if picked.prefill is None else 1
        asker, num_bound = request.gateway_id, ask.num_bound_tokens
        self._in_flight.add(Sent(decision_id, ref.id, ref.epoch, now, num_here, num_bound, asker))
        canary = self._rules.revisions(ask.model).canary
        if canary is not None:
            self._demand.outcomes.sent(decision_id, Arm(ask.model, view.revision, canary.trial), ask.budget)
        tracing.annotate(decision=decision_id, why=why, num_candidates=len(picked.choice.scored), held_s=picked.held_s)
        decided_at_ms = round(time.time() * 1000)
        asked = Asked(request.response_id, request.attempt, asker)
        self._decisions.add(Decision(decision_id, asked, Record(picked.choice), why, decided_at_ms))
        budget, prefill_s = ask.budget, self._dispatcher.predicted_prefill_s(ask, view)
        total_left_s = (
            max(0.001, request.total_deadline_ms / 1000 - picked.held_s) if request.total_deadline_ms else 0.0
        )
        deadline = queue_deadline(budget, prefill_s, left_s=request.queue_deadline_ms / 1000, total_left_s=total_left_s)
        described = replica.description
        assert described is not None, "a replica is picked only when it is described"
        return routing_pb2.RouteResponse(
            decision_id=decision_id,
            replica=ref,
            prefill=_prefill_ref(picked),
            kv_context=described.kv_context,
            page_tokens=described.page_tokens,
            predicted_prefill_ms=prefill_s * 1000,
            num_predicted_hit_tokens=ask.num_prompt_tokens - num_new,
            queue_deadline_ms=max(1, round(deadline.wait_s * 1000)),
            ttft_infeasible=deadline.infeasible,
            why=why,
            held_ms=round(picked.held_s * 1000),
            inter_token_ms=round(budget.inter_token_s * 1000),
        )

    def settle(self, outcome: routing_pb2.AttemptOutcome) -> None:
        """Once per decision: a second report, or one of a decision that was another router's, changes nothing."""
        if kept := tracing.parse({"traceparent": outcome.traceparent}):
            tracing.SPANS.keep(kept.trace_id)
        self._demand.outcomes.ended(outcome.decision_id, _ending(outcome))
        sent = self._in_flight.release(outcome.decision_id)
        if sent is None:
            return
        _reported.labels(outcome.outcome).inc()
        replica = self._table.get(sent.replica_id)
        if replica is not None and replica.epoch == sent.epoch:
            verdict = breaker.judge(outcome.outcome, outcome.reason)
            was_open = replica.breaker.open_until is not None
            replica.breaker.on_outcome(verdict, self._clock(), self._jitter.random())
            if (replica.breaker.open_until is not None) != was_open:
                facts = {"replica": sent.replica_id, "open": not was_open, "reason": outcome.reason}
                log.warning("breaker_changed", extra=facts)


def _prefill_ref(picked: Picked) -> response_pb2.ReplicaRef | None:
    if picked.prefill is None:
        return None
    row = picked.prefill.row
    return response_pb2.ReplicaRef(id=row.ref.id, epoch=picked.prefill.epoch, endpoint=row.ref.endpoint)


def _ending(outcome: routing_pb2.AttemptOutcome) -> Ending:
    return Ending(outcome.outcome, outcome.reason, outcome.ttft_ms / 1000, outcome.inter_token_ms / 1000)


def _to_ask(request: Any, rules: FleetRules) -> Ask:
    """Raises InvalidRequest naming the field."""
    if not request.model:
        raise HeadraceError("invalid_argument", "is missing", field="model")
    if not request.response_id:
        raise HeadraceError("invalid_argument", "is missing", field="response_id")
    if len(request.chain) % DIGEST_BYTES:
        raise HeadraceError("invalid_argument", f"is no multiple of {DIGEST_BYTES} bytes", field="chain")
    revisions = rules.revisions(request.model)
    return Ask(
        model=request.model,
        revisions=revisions.allowed(request.revision),
        on_trial=revisions.on_trial(request.model, request.revision, request.session or request.response_id),
        slo_class=request.slo_class,
        budget=rules.budget(request.slo_class),
        num_prompt_tokens=request.bounds.num_prompt_tokens,
        max_output_tokens=request.bounds.max_output_tokens,
        n=request.bounds.n or 1,
        grammar=request.features.grammar,
        logprobs=request.features.logprobs,
        excluded=frozenset(request.excluded),
        session=request.session,
        fair_key=request.fair_key,
    )
