"""Whether policy can do its work: a snapshot is in force and Redis answers. Does no work itself."""

import asyncio
import logging

from headrace_kit.health import Health
from headrace_policy.redis_link import RedisLink, StoreAwayError

log = logging.getLogger(__name__)
PROBE_S = 0.5


class RedisHealth:
    """Keeps the component ``redis`` true, also while nobody calls."""

    def __init__(self, health: Health, link: RedisLink) -> None:
        self._health, self._link = health, link
        health.add("redis")

    async def run(self) -> None:
        """For ever; for ``host.tasks.start``."""
        await self._link.warm_up()
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_S)

    async def probe(self) -> None:
        """The script itself is tried, so that a server that forbids it is found here and not by a request.

        So is the number of the data, for another policy may have come, and it must not run out while we are here.
        """
        try:
            await self._link.call(self._link.verify)
            await self._link.run([f"headrace:{{_probe}}:{name}" for name in "abcd"], ["tour", '{"count":1}'])
        except StoreAwayError as error:
            self._health.not_serving("redis", str(error))
        else:
            self._health.serving("redis")
