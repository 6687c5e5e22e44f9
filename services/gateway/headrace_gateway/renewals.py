"""Keeps the leases of running responses alive: one call for all of them, well before the first runs out."""

import asyncio
import logging

from headrace.v1 import policy_pb2 as pb
from headrace_gateway.upstreams.policy import PolicyClient
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
RENEW_EVERY_S = 10.0


class Renewals:
    """The reservations that this gateway holds, by response id."""

    def __init__(self, policy: PolicyClient, gateway_id: str) -> None:
        self._policy, self._gateway_id = policy, gateway_id
        self._held: dict[str, pb.Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, reservation: pb.Reservation) -> None:
        self._held[reservation.response_id] = reservation

    def release(self, response_id: str) -> None:
        self._held.pop(response_id, None)

    async def run(self) -> None:
        """Renews for ever; for `host.tasks.start`. A failed call is made again at the next turn."""
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            if not self._held:
                continue
            request = pb.RenewRequest(gateway_id=self._gateway_id, reservations=list(self._held.values()))
            try:
                await self._policy.renew(request)
            except HeadraceError as error:
                log.warning("renew_failed", extra={"num_reservations": len(self._held), "detail": error.message})
