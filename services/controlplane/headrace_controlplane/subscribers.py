"""Who subscribes to the snapshot and what became of each version there. Knows no stream."""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace_controlplane import sections
from headrace_kit.errors import HeadraceError


@dataclass
class Subscriber:
    """One subscribed instance; ``endpoint`` is empty if it may not be asked."""

    service: str
    instance: str
    endpoint: str
    version: int = 0
    nacked: int = 0
    error: str = ""

    def note(self, last_good: int, nacked: int, error: str) -> None:
        """The fate of a version. A version that came into force after a refusal ends the refusal."""
        self.version = last_good
        if nacked:
            self.nacked, self.error = nacked, error[:1000]
        elif last_good > self.nacked:
            self.nacked, self.error = 0, ""


class Subscribers:
    """The open subscriptions."""

    def __init__(self) -> None:
        self._open: list[Subscriber] = []

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._open)

    def add(self, service: str, instance: str, endpoint: str) -> Subscriber:
        """Opens a subscription; raises InvalidRequest."""
        if service not in sections.AUDIENCES:
            known = ", ".join(sections.AUDIENCES)
            raise HeadraceError("invalid_argument", f'expected one of {known}, got "{service}"', field="service")
        if not instance:
            raise HeadraceError("invalid_argument", "is missing", field="instance")
        subscriber = Subscriber(service, instance, endpoint)
        self._open.append(subscriber)
        return subscriber

    def remove(self, subscriber: Subscriber) -> None:
        self._open.remove(subscriber)

    def endpoints(self, service: str) -> list[str]:
        """Where instances of a service answer, newest subscription first."""
        return list(dict.fromkeys(s.endpoint for s in reversed(self._open) if s.service == service and s.endpoint))
