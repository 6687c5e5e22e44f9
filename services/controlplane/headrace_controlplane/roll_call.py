"""Who has to answer when a service is asked: its subscribers, and those that fell silent. Asks no question itself."""

import asyncio

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
