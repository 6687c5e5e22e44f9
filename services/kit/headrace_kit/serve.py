"""The composition root of every service: ports, health, tasks, signals, drain, close. Knows no service's parts.

SIGTERM -> not serving -> drain callbacks -> listeners -> tasks -> close callbacks in reverse -> exit 0.
"""

import asyncio
import json
import logging
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import grpc
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace_kit import logs, otlp, settings, telemetry, tracing
from headrace_kit.channels import KeyPair, Tls, connect
from headrace_kit.files import write_atomically
from headrace_kit.health import Health
from headrace_kit.interceptors import bearer_matches
from headrace_kit.lifecycle import Supervisor, cancel_and_wait, left_s
from headrace_kit.listeners import GrpcListener, HttpListener, StartError

log = logging.getLogger(__name__)
L = TypeVar("L", GrpcListener, HttpListener)
Callback = Callable[[], Coroutine[Any, Any, None]]
Build = Callable[["Host"], Coroutine[Any, Any, None]]
_CLOSE_S = 5.0
_SAME_SIGNAL_S = 0.3


class HostConfig(Protocol):
    """The fields that every service's configuration has; listen addresses are host:port, port 0 takes a free one."""

    @property
    def grpc_listen(self) -> str: ...
    @property
    def http_listen(self) -> str: ...
    @property
    def service_token_file(self) -> Path: ...
    @property
    def state_dir(self) -> Path: ...
    @property
    def announce(self) -> Path | None: ...
    @property
    def drain_s(self) -> float: ...
    @property
    def log_level(self) -> str: ...
    @property
    def otlp_endpoint(self) -> str | None: ...
    @property
    def tls_ca(self) -> Path | None: ...
    @property
    def tls_cert(self) -> Path | None: ...
    @property
    def tls_key(self) -> Path | None: ...


class Host:
    """What ``build`` wires a service into; its ports are bound already, and answer after ``build`` returns."""

    def __init__(self, service: str, config: HostConfig, instance: str) -> None:
        self.service, self.instance, self.tls = service, instance, _tls(config)
        self.service_token = _read_token(config.service_token_file)
        self.health, self.tasks, self.draining = Health(), Supervisor(self.fail), asyncio.Event()
        self.grpc = GrpcListener(config.grpc_listen, self.health, token=self.service_token, tls=self.tls)
        self.http = HttpListener(config.http_listen, self._internal_app(), tls=self.tls)
        self.announced: dict[str, object] = {
            "service": service,
            "instance": instance,
            "pid": os.getpid(),
            "grpc": self.grpc.address,
            "http": self.http.address,
        }
        self._config, self._exit_code = config, 0
        self._public: list[GrpcListener | HttpListener] = []
        self._on_drain: list[Callback] = []
        self._on_close: list[Callback] = []
        self._stopping = asyncio.Event()
        self._signalled_at = math.inf

    def add_public_listener(self, name: str, listen: str, *, tls: KeyPair | Tls | None = None) -> GrpcListener:
        """A gRPC server without token and reflection; its address is announced under ``name``."""
        return self._publish(name, GrpcListener(listen, self.health, token=None, tls=tls))

    def add_http_listener(self, name: str, listen: str, app: Any, **options: Any) -> HttpListener:
        """An ASGI app; ``options`` are HttpListener's; its address is announced under ``name``."""
        return self._publish(name, HttpListener(listen, app, **options))

    def on_drain(self, callback: Callback) -> None:
        """Runs with the others when the process stops, for at most drain_s together: finish work, end long streams."""
        self._on_drain.append(callback)

    def on_close(self, callback: Callback) -> None:
        """Runs after everything else has stopped, last registered first."""
        self._on_close.append(callback)

    def export_spans(self, channel: grpc.aio.Channel, to: Literal["controlplane", "collector"]) -> None:
        """Spans of this process go there too; the channel stays the caller's, to be closed on close."""
        names: dict[str, tracing.Value] = {"service.name": f"headrace-{self.service}"}
        exporter = otlp.Exporter(channel, names | {"service.instance.id": self.instance}, to)
        tracing.SPANS.outlets.append(exporter)
        self.tasks.start(f"spans_{to}", exporter.run)
        self.on_close(exporter.flush)

    def collector(self, endpoint: str) -> grpc.aio.Channel:
        """To somebody else's collector: without our token; https:// is TLS with its public certificate."""
        scheme, _, target = endpoint.rpartition("://")
        if scheme == "https":
            return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials())
        return connect(target, token=None)

    def stop(self) -> None:
        self._stopping.set()

    def fail(self, reason: str) -> None:
        """Stops in the same order as a signal does, with exit code 1."""
        log.error("process_failed", extra={"reason": reason})
        self._exit_code = 1
        self.stop()

    async def run(self, build: "Build") -> int:
        """Builds, serves until stopped, returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
        building: asyncio.Task[None] = asyncio.create_task(build(self))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([building, stopping], return_when=asyncio.FIRST_COMPLETED)
            if building.done() and (error := building.exception()) is None:
                await self._open()
                await stopping
            elif building.done():
                if isinstance(error, StartError):
                    raise error
                log.error("build_failed", exc_info=error)  # not raised: a bare traceback may show credentials
                self._exit_code = 1
        finally:
            await cancel_and_wait(building, stopping)
            await self._shut_down()
        return self._exit_code

    async def _open(self) -> None:
        for listener in (self.grpc, self.http, *self._public):
            await listener.start()
        if self._config.announce is not None:
            write_atomically(self._config.announce, json.dumps(self.announced).encode())
        log.info("started", extra={"addresses": self.announced})

    async def _shut_down(self) -> None:
        log.info("stopping")
        deadline = time.monotonic() + self._config.drain_s
        self.draining.set()
        self.health.drain()
        await _finish("drain", self._on_drain, left_s(deadline, time.monotonic()))
        self.health.drain(end_watches=True)
        grace_s = left_s(deadline, time.monotonic())
        await asyncio.gather(*(listener.stop(grace_s) for listener in (self.grpc, *self._public)))
        await self.tasks.stop()
        for callback in reversed(self._on_close):
            await _finish("close", [callback], _CLOSE_S)
        await self.http.stop(1.0)
        self._withdraw()
        log.info("stopped", extra={"exit_code": self._exit_code})

    def _signalled(self, number: int) -> None:
        now = time.monotonic()
        # A parent that dies thread by thread sends its death signal once for each: that is no second wish.
        if self._stopping.is_set() and now > self._signalled_at + _SAME_SIGNAL_S:
            self._withdraw()
            os._exit(128 + number)
        self._signalled_at = min(now, self._signalled_at)
        self.stop()

    def _withdraw(self) -> None:
        path = self._config.announce
        # A successor may have written its own announcement by now.
        if path is not None and path.exists() and json.loads(path.read_bytes()) == self.announced:
            path.unlink(missing_ok=True)

    def _publish(self, name: str, listener: L) -> L:
        self._public.append(listener)
        self.announced[name] = listener.address
        return listener

    def _internal_app(self) -> Starlette:
        async def answer(request: Request) -> Response:
            if request.url.path == "/healthz":
                return Response("ok\n")
            if request.url.path == "/readyz":
                return JSONResponse(self.health.report(), 200 if self.health.ready else 503)
            if not bearer_matches(request.headers, self.service_token):
                return Response("the service token is missing or wrong\n", 401)
            body, media_type = telemetry.exposition(request.headers.get("accept", ""))
            return Response(body, media_type=media_type)

        return Starlette(routes=[Route(path, answer) for path in ("/healthz", "/readyz", "/metrics")])


def run(service: str, config: HostConfig, build: "Build") -> None:
    """Serves until a signal and exits: 0 stopped, 1 failed, 2 configuration, 3 address taken; a second signal kills."""
    instance = secrets.token_hex(4)
    logs.setup(service, instance, config.log_level)
    log.info("starting", extra={"version": settings.version(service), "settings": settings.describe(config)})

    async def main() -> int:
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        host = Host(service, config, instance)
        if config.otlp_endpoint:
            channel = host.collector(config.otlp_endpoint)
            host.on_close(channel.close)
            host.export_spans(channel, "collector")
        return await host.run(build)

    try:
        code = asyncio.run(main())
    except StartError as error:
        print(f"headrace-{service}: {error}", file=sys.stderr)
        code = error.code
    raise SystemExit(code)


def _tls(config: HostConfig) -> Tls | None:
    if config.tls_ca is None or config.tls_cert is None or config.tls_key is None:
        return None
    return Tls(config.tls_ca, config.tls_cert, config.tls_key)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(2, f"cannot read the service token file {path}: {error}") from error
    if not token:
        raise StartError(2, f"the service token file {path} is empty")
    return token


async def _finish(phase: str, callbacks: list[Callback], limit_s: float) -> None:
    """Runs callbacks together; one that fails or is late is logged, for the others must still run."""
    tasks = {asyncio.create_task(callback()): callback for callback in callbacks}
    done, late = await asyncio.wait(tasks, timeout=limit_s) if tasks else (set(), set())
    for task in late:
        task.cancel()
        log.warning(f"{phase}_late", extra={"callback": tasks[task].__qualname__, "limit_s": limit_s})
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(f"{phase}_failed", extra={"callback": tasks[task].__qualname__}, exc_info=error)
