"""Responses whose gateway died: their finals come from the workers, and this gateway closes their books.

They are settled as failed{gateway_lost}: nobody can know what their clients still read.
"""

import asyncio
import logging
from collections import defaultdict

from headrace.v1 import policy_pb2, response_pb2, routing_pb2
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.settler import Settler
from headrace_gateway.upstreams.router import RouterClient
from headrace_gateway.upstreams.worker_link import WorkerLink
from headrace_kit import telemetry
from headrace_kit.lifecycle import report_crash

log = logging.getLogger(__name__)
_adopted = telemetry.counter("orphans_settled_total", "Responses of lost gateways that this one settled")


class OrphanSettler:
    """Collects the finals of all choices of an attempt, settles it, and only then acknowledges and reports it."""

    def __init__(self, settler: Settler, router: RouterClient, gateway_id: str) -> None:
        self._settler, self._router, self._gateway_id = settler, router, gateway_id
        self._seen: dict[tuple[str, int], dict[int, pb.Orphan]] = defaultdict(dict)
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, link: WorkerLink, orphans: list[pb.Orphan]) -> None:
        """Orphans of one frame. What this gateway itself submitted is settled by its own session."""
        for orphan in orphans:
            final = orphan.final
            if orphan.gateway_id == self._gateway_id:
                link.acknowledge(final.response_id, final.attempt, traced=True)
                continue
            ref = (final.response_id, final.attempt)
            self._seen[ref][final.choice] = orphan
            if len(self._seen[ref]) == max(1, orphan.n):
                task = asyncio.create_task(self._settle(link, list(self._seen.pop(ref).values())))
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """One that crashed stays unacknowledged: its worker offers it to another gateway once this one is gone."""
        self._tasks.discard(task)
        report_crash("orphan", task)

    async def _settle(self, link: WorkerLink, orphans: list[pb.Orphan]) -> None:
        first = orphans[0].final
        closed = settlement(orphans)
        answer = await self._settler.settle(closed)
        if answer is None or answer.state == policy_pb2.SettleResponse.STATE_DUPLICATE:
            # What stands may be the settlement of another attempt of the same response.
            await self._settler.settle(beside(closed))
        link.acknowledge(first.response_id, first.attempt, traced=True)
        self._router.report(outcome(orphans))
        _adopted.inc()
        log.warning("orphan_settled", extra={"response_id": first.response_id, "lost_gateway": orphans[0].gateway_id})


def settlement(orphans: list[pb.Orphan]) -> policy_pb2.SettleRequest:
    """The books of one attempt, from the finals of all its choices."""
    finals = [orphan.final for orphan in orphans]
    one = orphans[0]
    num_generated = sum(final.num_generated_tokens for final in finals)
    num_late = sum(final.num_late_tokens for final in finals)
    num_accepted = sum(final.num_accepted_tokens for final in finals)
    return policy_pb2.SettleRequest(
        reservation=policy_pb2.Reservation.FromString(one.reservation),
        created=True,
        kind=response_pb2.TERMINAL_KIND_FAILED,
        reason="gateway_lost",
        num_prompt_tokens=finals[0].num_prompt_tokens,
        num_cached_tokens=finals[0].num_cached_tokens,
        num_output_tokens=num_accepted,
        discarded=policy_pb2.Discarded(
            num_late_step_tokens=num_late, num_stop_overshoot_tokens=max(0, num_generated - num_late - num_accepted)
        ),
        attempts=[
            policy_pb2.AttemptUsage(
                attempt=finals[0].attempt,
                replica=one.replica,
                decision_id=one.decision_id,
                num_generated_tokens=num_generated,
                device_us=sum(final.device_us for final in finals),
                prefill=next((final.prefill for final in finals if final.HasField("prefill")), None),
                prefill_device_us=sum(final.prefill_device_us for final in finals),
                outcome="failed",
            )
        ],
        source=policy_pb2.SETTLEMENT_SOURCE_ORPHAN,
        snapshot_version=one.snapshot_version,
    )


def beside(closed: policy_pb2.SettleRequest) -> policy_pb2.SettleRequest:
    """The same attempt under an id of its own, for the books of its replica: a response may have had several."""
    found = policy_pb2.SettleRequest(attempt_of=closed.reservation.response_id, reason=closed.reason)
    found.reservation.CopyFrom(closed.reservation)
    found.reservation.response_id += f".{closed.attempts[0].attempt}"
    found.attempts.extend(closed.attempts)
    found.source, found.snapshot_version = closed.source, closed.snapshot_version
    return found


def outcome(orphans: list[pb.Orphan]) -> routing_pb2.AttemptOutcome:
    """For the router, which counts the decision as in flight until somebody tells how it ended."""
    one = orphans[0]
    return routing_pb2.AttemptOutcome(
        decision_id=one.decision_id,
        response_id=one.final.response_id,
        attempt=one.final.attempt,
        outcome="failed",
        reason="gateway_lost",
        num_generated_tokens=sum(orphan.final.num_generated_tokens for orphan in orphans),
    )
