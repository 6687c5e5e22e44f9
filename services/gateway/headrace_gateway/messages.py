"""From the lifecycle's plain data to the messages of policy, router and worker, and back. No I/O, no state."""

import time

from headrace.v1 import policy_pb2, response_pb2, routing_pb2, worker_pb2
from headrace_gateway.lifecycle import events, outputs
from headrace_gateway.lifecycle.settlement import AttemptRecord, Prefill, Settlement
from headrace_gateway.meter import Meter
from headrace_gateway.prepared import Prepared
from headrace_kit.errors import REASONS, HeadraceError

_KINDS = {
    "completed": response_pb2.TERMINAL_KIND_COMPLETED,
    "incomplete": response_pb2.TERMINAL_KIND_INCOMPLETE,
    "failed": response_pb2.TERMINAL_KIND_FAILED,
    "cancelled": response_pb2.TERMINAL_KIND_CANCELLED,
    "refused": response_pb2.TERMINAL_KIND_UNSPECIFIED,
}


def reservation(response_id: str, prepared: Prepared, gateway_id: str) -> policy_pb2.Reservation:
    return policy_pb2.Reservation(
        response_id=response_id,
        identity=prepared.identity,
        gateway_id=gateway_id,
        model=prepared.model.name,
        bounds=prepared.bounds,
        admitted_at_ms=int(time.time() * 1000),
    )


def admit_request(held: policy_pb2.Reservation, prepared: Prepared) -> policy_pb2.AdmitRequest:
    return policy_pb2.AdmitRequest(
        reservation=held,
        text=prepared.prompt_text if prepared.identity.screen_input else "",
        retry_of=prepared.request.retry_of,
        slo_class=prepared.slo_class,
    )


def screening(answer: policy_pb2.AdmitResponse) -> events.Screening:
    if not answer.screen_output:
        return events.Screening.NONE
    return events.Screening.FAIL_OPEN if answer.screen_fail_open else events.Screening.FAIL_CLOSED


def route_request(
    response_id: str, prepared: Prepared, output: outputs.Route, left_s: float
) -> routing_pb2.RouteRequest:
    return routing_pb2.RouteRequest(
        response_id=response_id,
        attempt=output.attempt,
        model=prepared.model.name,
        revision=prepared.model.entry.revision,
        bounds=prepared.bounds,
        chain=prepared.chain,
        fair_key=prepared.identity.fair_key,
        tenant_digest=prepared.identity.tenant_digest,
        session=prepared.session,
        slo_class=prepared.slo_class,
        features=routing_pb2.Features(
            grammar=prepared.request.HasField("grammar"), logprobs=prepared.sampling.logprobs
        ),
        total_deadline_ms=round(left_s * 1000) if prepared.client_deadline_s is not None else 0,
        excluded=output.excluded,
    )


def decision(answer: routing_pb2.RouteResponse) -> events.Decision:
    replica = answer.replica
    queue_s = answer.queue_deadline_ms / 1000
    return events.Decision(answer.decision_id, replica.id, replica.epoch, queue_s, answer.prefill.id)


def outcome(response_id: str, output: outputs.Report, meter: Meter) -> routing_pb2.AttemptOutcome:
    return routing_pb2.AttemptOutcome(
        decision_id=output.decision_id,
        response_id=response_id,
        attempt=output.attempt,
        outcome=output.outcome,
        reason=output.reason,
        phase=output.phase,
        num_generated_tokens=output.num_generated,
        ttft_ms=meter.ttft_s * 1000,
        inter_token_ms=meter.inter_token_s * 1000,
    )


def submit(
    response_id: str, prepared: Prepared, output: outputs.Submit, route: routing_pb2.RouteResponse
) -> worker_pb2.Submit:
    """Without what is the gateway's own: its id, its snapshot and the reservation."""
    message = worker_pb2.Submit(
        response_id=response_id,
        attempt=output.attempt,
        decision_id=route.decision_id,
        replica_epoch=route.replica.epoch,
        prompt_ids=prepared.prompt_ids,
        max_output_tokens=prepared.bounds.max_output_tokens,
        n=prepared.bounds.n,
        sampling=prepared.sampling,
        queue_deadline_ms=max(1, round(output.queue_s * 1000)),
        total_deadline_ms=max(1, round(output.total_s * 1000)),
        inter_token_ms=route.inter_token_ms,
        slo_class=prepared.slo_class,
        statistical=prepared.statistical,
        fair_key=prepared.identity.fair_key,
        weight=prepared.identity.weight,
        tenant_digest=prepared.identity.tenant_digest,
        chain_root=prepared.chain_root,
        kv_context=route.kv_context,
    )
    if prepared.request.HasField("grammar"):
        message.grammar.CopyFrom(prepared.request.grammar)
    if route.HasField("prefill"):
        message.prefill.CopyFrom(route.prefill)
    return message


def cancel(response_id: str, prepared: Prepared, output: outputs.Cancel) -> worker_pb2.Cancel:
    return worker_pb2.Cancel(
        response_id=response_id,
        attempt=output.attempt,
        choice=output.choice,
        reason=output.reason,
        accepted_count=output.accepted_count,
        tenant_digest=prepared.identity.tenant_digest,
    )


def settlement(closed: Settlement, held: policy_pb2.Reservation, snapshot_version: int) -> policy_pb2.SettleRequest:
    counts = closed.counts
    return policy_pb2.SettleRequest(
        reservation=held,
        created=closed.created,
        kind=_KINDS[closed.kind],
        reason=closed.reason,
        num_prompt_tokens=counts.num_prompt,
        num_cached_tokens=counts.num_cached,
        num_output_tokens=counts.num_output,
        num_delivered_tokens=counts.num_delivered,
        num_withheld_tokens=counts.num_withheld,
        discarded=policy_pb2.Discarded(
            num_stop_overshoot_tokens=counts.num_stop_overshoot,
            num_late_step_tokens=counts.num_late_step,
            num_old_attempt_tokens=counts.num_old_attempt,
        ),
        attempts=[_attempt_usage(record) for record in closed.attempts],
        source=policy_pb2.SETTLEMENT_SOURCE_OWNER,
        snapshot_version=snapshot_version,
        screening_verdict=closed.screening_verdict,
    )


def _attempt_usage(record: AttemptRecord) -> policy_pb2.AttemptUsage:
    usage = policy_pb2.AttemptUsage(
        attempt=record.attempt,
        replica=response_pb2.ReplicaRef(id=record.replica_id, epoch=record.replica_epoch),
        decision_id=record.decision_id,
        num_generated_tokens=record.num_generated,
        device_us=record.device_us,
        outcome=record.outcome,
    )
    _name_prefill(usage, record.prefill)
    return usage


def _name_prefill(usage: policy_pb2.AttemptUsage, prefill: Prefill | None) -> None:
    if prefill is not None:
        usage.prefill.id, usage.prefill.epoch = prefill.replica_id, prefill.replica_epoch
        usage.prefill_device_us = prefill.device_us


def late(
    held: policy_pb2.Reservation,
    ack: outputs.Ack,
    route: routing_pb2.RouteResponse,
    ending: outputs.Terminal | outputs.Refusal,
    number: int,
) -> policy_pb2.SettleRequest:
    """Device time that was told of after the settlement, under an id of its own: it charges nothing.

    ``number`` is its place among the late finals of the response, which ended like this.
    """
    found = policy_pb2.SettleRequest(reservation=held, attempt_of=held.response_id, reason=ending.reason)
    if isinstance(ending, outputs.Terminal):
        found.kind = _KINDS[ending.kind]
    found.reservation.response_id += f".{ack.attempt}.{number}"
    found.source = policy_pb2.SETTLEMENT_SOURCE_OWNER
    usage = found.attempts.add(attempt=ack.attempt, decision_id=route.decision_id, device_us=ack.late_device_us)
    usage.replica.CopyFrom(route.replica)
    _name_prefill(usage, ack.late_prefill)
    return found


def refusal_error(refusal: outputs.Refusal) -> HeadraceError:
    """The typed status of a response that was never created."""
    message = refusal.detail or REASONS[refusal.reason].meaning
    return HeadraceError(refusal.reason, message, field=refusal.field or None, retry_after_s=refusal.retry_after_s)
