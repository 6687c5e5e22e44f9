"""Who subscribes to the snapshot and what became of each version there, and who is missed. Knows no stream."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headrace_controlplane import sections
from headrace_kit.errors import HeadraceError

MISSED_S = 900.0
"""How long an instance is missed whose subscription ended without a goodbye."""
DEPARTED_S = 2 * 3600.0
"""How long it is known where an instance was that does not subscribe any more; routers ask for an hour."""


def check_service(service: str) -> None:
    """Raises InvalidRequest unless it is one that subscribes."""
    if service not in sections.AUDIENCES:
        known = ", ".join(sections.AUDIENCES)
        raise HeadraceError("invalid_argument", f'expected one of {known}, got "{service}"', field="service")


@dataclass
class Subscriber:
    """One subscribed instance; ``endpoint`` is empty if it may not be asked."""

    service: str
    instance: str
    endpoint: str
    version: int = 0
    nacked: int = 0
    error: str = ""
    leaving: bool = False

    def note(self, last_good: int, nacked: int, error: str) -> None:
        """The fate of a version. A version that came into force after a refusal ends the refusal."""
        self.version = last_good
        if nacked:
            self.nacked, self.error = nacked, error[:1000]
        elif last_good > self.nacked:
            self.nacked, self.error = 0, ""


class Departed(NamedTuple):
    """Where an instance answered whose subscription ended, and whether it may be missed still."""

    endpoint: str
    is_missed: bool


class Subscribers:
    """The open subscriptions, and those that broke off a while ago by ``clock``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._open: list[Subscriber] = []
        self._clock, self._broken_off = clock, dict[tuple[str, str], float]()
        self._departed: dict[tuple[str, str], tuple[str, float]] = {}

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._open)

    def add(self, service: str, instance: str, endpoint: str) -> Subscriber:
        """Opens a subscription; raises InvalidRequest."""
        check_service(service)
        if not instance:
            raise HeadraceError("invalid_argument", "is missing", field="instance")
        subscriber = Subscriber(service, instance, endpoint)
        self._open.append(subscriber)
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        self._open.remove(subscriber)
        self._note_departed(subscriber)
        place = subscriber.service, subscriber.endpoint
        if subscriber.leaving:
            self.forget(*place)
        elif subscriber.endpoint:
            self._broken_off[place] = self._clock()

    def endpoints(self, service: str) -> list[str]:
        """Where instances of a service answer, newest subscription first."""
        return list(dict.fromkeys(s.endpoint for s in reversed(self._open) if s.service == service and s.endpoint))

    def missed(self, service: str) -> list[str]:
        """Where instances answered whose subscription broke off within MISSED_S and that nobody knows to be gone."""
        since, here = self._clock() - MISSED_S, self.endpoints(service)
        self._broken_off = {place: at for place, at in self._broken_off.items() if at >= since}
        return [endpoint for name, endpoint in self._broken_off if name == service and endpoint not in here]

    def forget(self, service: str, endpoint: str) -> None:
        """Nobody misses it any more: it said goodbye, or is known to be gone."""
        self._broken_off.pop((service, endpoint), None)

    def departed(self, service: str, instance: str) -> Departed | None:
        """Of an instance that does not subscribe any more; None if it does, or nobody knows."""
        if any((one.service, one.instance) == (service, instance) for one in self._open):
            return None
        endpoint, at = self._departed.get((service, instance), ("", 0.0))
        return Departed(endpoint, at >= self._clock() - MISSED_S) if endpoint else None

    def is_taken(self, endpoint: str) -> bool:
        """Whether a process that subscribes answers there."""
        return any(one.endpoint == endpoint for one in self._open)

    def _note_departed(self, subscriber: Subscriber) -> None:
        now = self._clock()
        self._departed = {name: one for name, one in self._departed.items() if one[1] >= now - DEPARTED_S}
        if subscriber.endpoint:
            self._departed[subscriber.service, subscriber.instance] = subscriber.endpoint, now
