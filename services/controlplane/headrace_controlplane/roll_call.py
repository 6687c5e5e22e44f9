"""Who has to answer when a service is asked: its subscribers, and those that fell silent. Asks no question itself."""

import asyncio
from collections.abc import Iterable

from headrace_controlplane.peers import is_gone
from headrace_controlplane.subscribers import Departed, Subscribers


class RollCall:
    """An instance that broke off may hold books still; only one that is known to be gone owes no answer."""

    def __init__(self, subscribers: Subscribers) -> None:
        self._subscribers = subscribers

    async def endpoints(self, service: str) -> list[str]:
        """Where to ask, newest subscription first, then those that broke off."""
        missed = self._subscribers.missed(service)
        for endpoint, gone in zip(missed, await asyncio.gather(*map(is_gone, missed)), strict=True):
            if gone:
                self._subscribers.forget(service, endpoint)
        return self._subscribers.endpoints(service) + self._subscribers.missed(service)

    async def gone(self, service: str, instances: Iterable[str]) -> list[str]:
        """Those that do not subscribe any more, and where they were nobody listens, or another process that subscribes.

        One whose host is away is so when nobody misses it any more. One that never subscribed here may live.
        """
        known = [(name, one) for name in instances if (one := self._subscribers.departed(service, name))]
        left = await asyncio.gather(*(self._is_left(one) for _, one in known))
        return [name for (name, _), is_left in zip(known, left, strict=True) if is_left]

    async def _is_left(self, one: Departed) -> bool:
        return not one.is_missed or self._subscribers.is_taken(one.endpoint) or await is_gone(one.endpoint)
