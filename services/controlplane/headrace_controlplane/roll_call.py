"""Who has to answer when a service is asked: its subscribers, and those that fell silent. Asks no question itself."""

import asyncio
from collections.abc import Iterable

from headrace_controlplane.peers import is_gone
from headrace_controlplane.subscribers import Subscribers


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

        One that never subscribed here may live: it is in none of these, and neither is one whose host is away.
        """
        known = [(name, place) for name in instances if (place := self._subscribers.departed(service, name))]
        left = await asyncio.gather(*(self._is_left(place) for _, place in known))
        return [name for (name, _), is_left in zip(known, left, strict=True) if is_left]

    async def _is_left(self, place: str) -> bool:
        return self._subscribers.is_taken(place) or await is_gone(place)
