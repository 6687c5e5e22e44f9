"""A whole service made from the kit, run as a process of its own by test_serve."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_kit import serve, settings
from tests.unit.kit.fakes import handlers


@dataclass(frozen=True)
class Config:
    """Echoes bytes."""

    service_token_file: Path
    state_dir: Path
    grpc_listen: str = "127.0.0.1:0"
    http_listen: str = "127.0.0.1:0"
    announce: Path | None = None
    drain_s: float = 10.0
    log_level: str = "info"
    public_listen: str | None = None
    password: str = field(default="", repr=False, metadata={"help": "a secret of the tests", "secret": True})
    crash: bool = field(default=False, metadata={"help": "start a task that crashes and fails the process"})
    otlp_endpoint: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    build_error: str | None = None
    build_s: float = field(default=0.0, metadata={"help": "how long building takes"})


async def count(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Counts up to the number asked for, 10 ms apart."""
    for number in range(int(request)):
        yield str(number).encode()
        await asyncio.sleep(0.01)


async def back(request: bytes, _context: Any) -> bytes:
    return request


async def hold(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Ignores every wish to drain."""
    yield b"held"
    await asyncio.Event().wait()


async def broken() -> None:
    raise RuntimeError("the task broke")


def main() -> None:
    config = settings.load(Config, service="echo")

    async def build(host: serve.Host) -> None:
        async def note(what: str) -> None:
            with (config.state_dir / "order").open("a") as file:
                print(what, file=file)

        host.on_close(lambda: note("close first registered"))
        host.on_close(lambda: note("close second registered"))
        host.on_drain(lambda: note(f"drain ready={host.health.ready}"))
        host.health.add("loop")
        host.grpc.add_generic_rpc_handlers([handlers(count_stream=count, hold_stream=hold, back=back)])
        if config.public_listen is not None:
            host.add_public_listener("public_grpc", config.public_listen)
        if config.crash:
            host.tasks.start("broken", broken, on_crash="fail")
        await asyncio.sleep(config.build_s)
        if config.build_error is not None:
            raise RuntimeError(config.build_error)
        host.health.serving("loop")

    serve.run("echo", config, build)


if __name__ == "__main__":
    main()
