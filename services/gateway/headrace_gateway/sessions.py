"""The responses that run in this gateway, by id: for cancels, for draining, and for the count of what is open."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from headrace_kit import telemetry

_open = telemetry.gauge("responses_open", "Responses that run in this gateway")


class RunningResponse(Protocol):
    """What others may ask of a running response."""

    response_id: str

    @property
    def attempt(self) -> int: ...
    @property
    def created(self) -> bool: ...
    def leave(self, reason: str) -> None: ...
    def stop(self) -> None: ...
    def belongs_to(self, tenant_digest: bytes) -> bool: ...


class Sessions:
    """Every response is added once and removed once."""

    def __init__(self) -> None:
        self._running: dict[str, RunningResponse] = {}
        self.num_started = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningResponse]:
        return iter(list(self._running.values()))

    def started(self, session: RunningResponse) -> None:
        self.num_started += 1
        self._running[session.response_id] = session
        self._idle.clear()
        _open.set(len(self._running))

    def ended(self, session: RunningResponse) -> None:
        self._running.pop(session.response_id, None)
        _open.set(len(self._running))
        if not self._running:
            self._idle.set()

    def find(self, response_id: str, tenant_digest: bytes) -> RunningResponse | None:
        """The running response, if it belongs to the tenant."""
        session = self._running.get(response_id)
        return session if session is not None and session.belongs_to(tenant_digest) else None

    async def drained(self) -> None:
        """Waits until nothing runs."""
        await self._idle.wait()

    def end_all(self) -> None:
        """The process stops: whoever is left loses this gateway, and is told so."""
        for session in list(self._running.values()):
            session.stop()
