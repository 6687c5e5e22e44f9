"""Every settlement reaches policy, once: at once if policy answers, else from the outbox, also after a restart."""

import asyncio
import logging

from headrace.v1 import policy_pb2 as pb
from headrace_gateway.outbox import Outbox
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import backoff_s

log = logging.getLogger(__name__)
SETTLE_WAIT_S = 0.05
_BATCH = 100
_late = telemetry.counter("settlements_late_total", "Settlements that went through the outbox")
_refused = telemetry.counter("settlements_refused_total", "Settlements that policy will never take; see the outbox")
_waiting = telemetry.gauge("settlements_waiting", "Settlements in the outbox")


class Settler:
    """`settle` returns within SETTLE_WAIT_S whatever policy does."""

    def __init__(self, policy: PolicyClient, outbox: Outbox) -> None:
        self._policy, self._outbox = policy, outbox
        self._wake = asyncio.Event()
        self._sending: dict[asyncio.Task[pb.SettleResponse | None], str] = {}
        # For the books: what was handed in and by id what policy has not confirmed.
        self._unconfirmed = set(outbox.ids())
        self.num_given, self.num_confirmed, self.num_set_aside = len(self._unconfirmed), 0, 0

    async def settle(self, request: pb.SettleRequest) -> pb.SettleResponse | None:
        """Sends it and waits briefly; what is not confirmed by then is kept on disk until it is, and answers None."""
        response_id = request.reservation.response_id
        if response_id not in self._unconfirmed:
            self._unconfirmed.add(response_id)
            self.num_given += 1
        task = asyncio.create_task(self._send(request))
        self._sending[task] = response_id
        task.add_done_callback(self._sending.pop)
        done, _ = await asyncio.wait([task], timeout=SETTLE_WAIT_S)
        if done:
            return task.result()
        self._keep(request)
        return None

    @property
    def num_waiting(self) -> int:
        """Settlements that policy has not confirmed."""
        return len(self._unconfirmed)

    @property
    def num_in_hand(self) -> int:
        """Of those, the ones that are on their way or on disk: all, or one is lost."""
        return len({*self._sending.values(), *self._outbox.ids()} & self._unconfirmed)

    async def run(self) -> None:
        """Empties the outbox for ever; for `host.tasks.start`."""
        attempt = 0
        if len(self._outbox):  # of an earlier process, or of a run that crashed
            self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while entries := self._outbox.oldest(_BATCH):
                if await self._drain(entries):
                    attempt = 0
                else:
                    await asyncio.sleep(backoff_s(attempt))
                    attempt += 1

    async def flush(self) -> None:
        """Waits for what is on its way; what policy does not confirm stays in the outbox for the next start."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def _send(self, request: pb.SettleRequest) -> pb.SettleResponse | None:
        response_id = request.reservation.response_id
        try:
            answer = await self._policy.settle(request)
        except HeadraceError as error:
            log.warning("settle_failed", extra={"response_id": response_id, "detail": error.message})
            self._keep(request)
            return None
        self._outbox.remove(response_id)
        self._confirm(response_id)
        _waiting.set(len(self._outbox))
        return answer

    def _confirm(self, response_id: str) -> None:
        if response_id in self._unconfirmed:
            self._unconfirmed.discard(response_id)
            self.num_confirmed += 1

    def _keep(self, request: pb.SettleRequest) -> None:
        _late.inc()
        self._outbox.put(request.reservation.response_id, request.SerializeToString())
        _waiting.set(len(self._outbox))
        self._wake.set()

    async def _drain(self, entries: list[tuple[str, bytes]]) -> bool:
        """Sends entries until policy does not answer; one that it refuses must not hold up the others."""
        for response_id, serialized in entries:
            try:
                await self._policy.settle(pb.SettleRequest.FromString(serialized))
            except HeadraceError as error:
                if error.row.http >= 500:
                    return False
                log.error("settlement_refused", extra={"response_id": response_id, "detail": error.message})
                _refused.inc()
                self._outbox.set_aside(response_id, serialized)
                self._unconfirmed.discard(response_id)
                self.num_set_aside += 1
            else:
                self._confirm(response_id)
            self._outbox.remove(response_id)
        _waiting.set(len(self._outbox))
        return True
