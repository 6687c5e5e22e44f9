"""Named components with a reason each, served as grpc.health.v1. Knows nothing about what a component does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse


@dataclass
class _Component:
    critical: bool
    serving: bool
    reason: str


class Health(health_pb2_grpc.HealthServicer):
    """The service ``""`` serves while every critical component does. Change states only from the event loop."""

    def __init__(self) -> None:
        self._components: dict[str, _Component] = {}
        self._changed = asyncio.Event()
        self._draining = self._closed = False

    def add(self, name: str, *, critical: bool = True, reason: str = "starting") -> None:
        """Declares a component; it is not serving until ``serving`` is called."""
        self._components[name] = _Component(critical, False, reason)
        self._notify()

    def serving(self, name: str) -> None:
        self._set(name, True, "")

    def not_serving(self, name: str, reason: str) -> None:
        self._set(name, False, reason)

    def drain(self) -> None:
        """Everything is not serving from here on."""
        self._draining = True
        self._notify()

    def close(self) -> None:
        """Ends the watches."""
        self._draining = self._closed = True
        self._notify()

    @property
    def ready(self) -> bool:
        return not self._draining and all(c.serving for c in self._components.values() if c.critical)

    def report(self) -> dict[str, object]:
        """The JSON of ``/readyz``."""
        return {"ready": self.ready, "draining": self._draining, "components": {
            name: {"serving": c.serving, "critical": c.critical, "reason": c.reason}
            for name, c in self._components.items()}}

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no component {request.service}")
        return _Response(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        last = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != last:
                yield _Response(status=status)
            if self._closed:
                return
            last = status
            await changed.wait()

    def _set(self, name: str, serving: bool, reason: str) -> None:
        assert name in self._components, f"undeclared health component {name}"
        component = self._components[name]
        if (component.serving, component.reason) != (serving, reason):
            component.serving, component.reason = serving, reason
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _status(self, name: str) -> Any:
        if name and name not in self._components:
            return _Response.SERVICE_UNKNOWN
        serving = self.ready if not name else self._components[name].serving and not self._draining
        return _Response.SERVING if serving else _Response.NOT_SERVING
