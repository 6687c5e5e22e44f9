"""Named components with a reason each, served as grpc.health.v1. Knows nothing about what a component does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class Health(health_pb2_grpc.HealthServicer):
    """The service ``""`` serves while every critical component does. Change states only from the event loop."""

    def __init__(self) -> None:
        self._critical: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}  # why a component is not serving; empty if it is
        self._changed = asyncio.Event()
        self._draining = self._closed = False

    def add(self, name: str, *, critical: bool = True, reason: str = "starting") -> None:
        """Declares a component; it is not serving until ``serving`` is called."""
        self._critical[name], self._reasons[name] = critical, reason
        self._notify()

    def serving(self, name: str) -> None:
        self._set(name, "")

    def not_serving(self, name: str, reason: str) -> None:
        self._set(name, reason or "not serving")

    def drain(self, *, end_watches: bool = False) -> None:
        """Everything is not serving from here on."""
        self._draining, self._closed = True, end_watches
        self._notify()

    @property
    def ready(self) -> bool:
        return not self._draining and not any(self._reasons[name] for name, vital in self._critical.items() if vital)

    def report(self) -> dict[str, object]:
        """The JSON of ``/readyz``."""
        return {
            "ready": self.ready,
            "draining": self._draining,
            "components": {
                name: {"serving": not reason, "critical": self._critical[name], "reason": reason}
                for name, reason in self._reasons.items()
            },
        }

    async def Check(self, request: Any, context: Any) -> Any:
        if request.service and request.service not in self._reasons:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no component {request.service}")
        return self._answer(request.service)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            # Taken together: during the yield all three may change, and the last answer must still be told.
            changed, answer, closed = self._changed, self._answer(request.service), self._closed
            if answer != last:
                yield answer
            if closed:
                return
            last = answer
            await changed.wait()

    def _set(self, name: str, reason: str) -> None:
        assert name in self._reasons, f"undeclared health component {name}"
        if self._reasons[name] != reason:
            self._reasons[name] = reason
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _answer(self, name: str) -> health_pb2.HealthCheckResponse:
        if name and name not in self._reasons:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        serving = self.ready if not name else not self._reasons[name] and not self._draining
        return health_pb2.HealthCheckResponse(
            status=health_pb2.HealthCheckResponse.ServingStatus.Value("SERVING" if serving else "NOT_SERVING")
        )
