import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.unit.kit.fakes import TOKEN, channel

ROOT = Path(__file__).parents[3]
PROXIES = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}


class Echo:
    """One running process of echo_service."""

    def __init__(self, process: asyncio.subprocess.Process, state: Path) -> None:
        self.process, self.state, self.announce = process, state, state / "echo.json"

    async def started(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not self.announce.exists():
                assert self.process.returncode is None, (await self.finished())[1]
                await asyncio.sleep(0.02)
        return dict(json.loads(self.announce.read_text()))

    async def finished(self) -> tuple[int, str]:
        _, err = await asyncio.wait_for(self.process.communicate(), 20)
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()

    @property
    def order(self) -> list[str]:
        return (self.state / "order").read_text().splitlines()


@contextlib.asynccontextmanager
async def echo(state: Path, *flags: str, **environment: str) -> AsyncIterator[Echo]:
    (state / "token").write_text(TOKEN + "\n")
    settings = {"SERVICE_TOKEN_FILE": state / "token", "STATE_DIR": state, "ANNOUNCE": state / "echo.json"}
    env = os.environ | {f"HEADRACE_ECHO_{name}": str(value) for name, value in settings.items()} | environment
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.unit.kit.echo_service", *flags, env=env, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Echo(process, state)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_a_service_starts_answers_and_stops_in_order(tmp_path: Path) -> None:
    async with echo(tmp_path, "--password=xyzzy", **PROXIES) as service:
        announced = await service.started()
        assert set(announced) == {"service", "instance", "pid", "grpc", "http"}
        assert (announced["service"], announced["pid"]) == ("echo", service.process.pid)
        async with channel(announced["grpc"]) as opened:
            answer = opened.unary_stream("/test.Echo/count_stream")(b"3", timeout=5)
            assert [message async for message in answer] == [b"0", b"1", b"2"]
        service.process.send_signal(signal.SIGTERM)
        code, log = await service.finished()
    lines = [json.loads(line) for line in log.splitlines()]
    assert code == 0
    assert service.order == ["drain ready=False", "close second registered", "close first registered"]
    assert not service.announce.exists()
    assert [line["event"] for line in lines if line["event"] in ("starting", "started", "stopping", "stopped")] == [
        "starting",
        "started",
        "stopping",
        "stopped",
    ]
    assert {line["instance"] for line in lines} == {announced["instance"]}
    assert "xyzzy" not in log and TOKEN not in log


async def test_the_internal_http_port_serves_probes_freely_and_metrics_by_token(tmp_path: Path) -> None:
    async with echo(tmp_path) as service, httpx.AsyncClient(trust_env=False) as client:
        base = f"http://{(await service.started())['http']}"
        ready = await client.get(f"{base}/readyz")
        assert (ready.status_code, ready.json()["components"]["loop"]["serving"]) == (200, True)
        assert (await client.get(f"{base}/healthz")).status_code == 200
        assert (await client.get(f"{base}/metrics")).status_code == 401
        metrics = await client.get(f"{base}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert "rpc_total" in metrics.text


def health_stub(opened: Any) -> Any:
    return health_pb2_grpc.HealthStub(opened)


async def reflected(address: str, token: str | None) -> set[str]:
    async with channel(address, token=token) as opened:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(opened)
        stream = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5)
        return {service.name async for reply in stream for service in reply.list_services_response.service}


async def test_reflection_lists_the_services_on_the_internal_listener_only(tmp_path: Path) -> None:
    async with echo(tmp_path, "--public-listen", "127.0.0.1:0") as service:
        announced = await service.started()
        assert await reflected(announced["grpc"], TOKEN) == {
            "test.Echo",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        for address, token, code in (
            (announced["grpc"], None, grpc.StatusCode.UNAUTHENTICATED),
            (announced["public_grpc"], TOKEN, grpc.StatusCode.UNIMPLEMENTED),
        ):
            async with channel(address, token=token) as opened:
                stub: Any = reflection_pb2_grpc.ServerReflectionStub(opened)
                # Nothing is written: a write that meets the refusal would hide it behind INTERNAL (grpc.aio).
                assert await stub.ServerReflectionInfo(timeout=5).code() is code
        async with channel(announced["public_grpc"], token=None) as opened:
            stub = health_stub(opened)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stop_under_load_finishes_every_stream_and_tells_the_watchers(tmp_path: Path) -> None:
    async with echo(tmp_path) as service:
        announced = await service.started()
        async with channel(announced["grpc"]) as opened:
            watch = aiter(health_stub(opened).Watch(health_pb2.HealthCheckRequest(), timeout=20))
            assert (await anext(watch)).status == health_pb2.HealthCheckResponse.SERVING
            count = opened.unary_stream("/test.Echo/count_stream")
            streams = [count(b"100", timeout=20) for _ in range(20)]
            assert [await anext(aiter(stream)) for stream in streams] == [b"0"] * 20
            service.process.send_signal(signal.SIGTERM)
            assert (await anext(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            rest = [[message async for message in stream] for stream in streams]
            assert [messages[-1] for messages in rest] == [b"99"] * 20
            assert {await stream.code() for stream in streams} == {grpc.StatusCode.OK}
        assert (await service.finished())[0] == 0


async def test_a_stream_that_will_not_end_is_cut_at_the_drain_deadline(tmp_path: Path) -> None:
    async with echo(tmp_path, "--drain-s", "0.3") as service:
        announced = await service.started()
        async with channel(announced["grpc"]) as opened:
            stream = opened.unary_stream("/test.Echo/hold_stream")(b"", timeout=20)
            assert await stream.read() == b"held"
            started = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.read()
        assert (await service.finished())[0] == 0
        assert 0.3 <= time.monotonic() - started < 5


async def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    async with echo(tmp_path, "--drain-s", "60") as service:
        announced = await service.started()
        async with channel(announced["grpc"]) as opened:
            stream = opened.unary_stream("/test.Echo/hold_stream")(b"", timeout=20)
            assert await stream.read() == b"held"
            watch = aiter(health_stub(opened).Watch(health_pb2.HealthCheckRequest(), timeout=20))
            await anext(watch)
            service.process.send_signal(signal.SIGTERM)
            assert (await anext(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            service.process.send_signal(signal.SIGTERM)  # at once: still the same wish
            await asyncio.sleep(0.5)
            assert service.process.returncode is None
            service.process.send_signal(signal.SIGTERM)
            assert (await service.finished())[0] == 128 + signal.SIGTERM
        assert not service.announce.exists()


@pytest.mark.parametrize("flag", ["--grpc-listen", "--http-listen", "--public-listen"])
async def test_a_taken_port_is_one_sentence_and_exit_code_3(tmp_path: Path, flag: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        async with echo(tmp_path, flag, address) as service:
            code, log = await service.finished()
    sentence = f"headrace-echo: cannot listen on {address}: the address is taken or not on this host"
    assert code == 3
    assert [line for line in log.splitlines() if not line.startswith("{")] == [sentence]


async def test_a_task_declared_vital_ends_the_process_with_code_1(tmp_path: Path) -> None:
    async with echo(tmp_path, "--crash") as service:
        code, log = await service.finished()
    assert code == 1 and "background task broken crashed" in log
    assert service.order[-1] == "close first registered"


async def test_a_failed_build_closes_what_was_built_and_shows_no_credential(tmp_path: Path) -> None:
    async with echo(tmp_path, "--build-error", "cannot connect to redis://:pa55word@host") as service:
        code, log = await service.finished()
    (failure,) = [line for line in map(json.loads, log.splitlines()) if line["event"] == "build_failed"]
    assert code == 1 and "redis://:***@host" in failure["exception"]
    assert "pa55word" not in log
    assert service.order[-1] == "close first registered"


async def test_a_signal_during_building_stops_in_order(tmp_path: Path) -> None:
    async with echo(tmp_path, "--build-s", "60") as service:
        async with asyncio.timeout(20):
            assert service.process.stderr is not None
            while b'"starting"' not in await service.process.stderr.readline():
                pass
        # The signal handlers are set right after this line; before that SIGTERM has its default effect.
        while service.process.returncode is None and not (tmp_path / "order").exists():
            if "SIGTERM" in await signals_caught(service.process.pid):
                service.process.send_signal(signal.SIGTERM)
                break
            await asyncio.sleep(0.01)
        code, _ = await service.finished()
    assert code == 0 and service.order[-1] == "close first registered"


async def signals_caught(pid: int) -> set[str]:
    status = await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text)
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    caught = int(mask.split()[1], 16)
    return {number.name for number in signal.Signals if caught >> (number - 1) & 1}


async def test_a_missing_token_file_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    async with echo(tmp_path, "--service-token-file", str(tmp_path / "absent")) as service:
        code, log = await service.finished()
    assert code == 2 and "cannot read the service token file" in log and "Traceback" not in log


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_a_span_continues_the_callers_trace_and_reaches_the_collector(tmp_path: Path) -> None:
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    collector, server = Collector(), grpc.aio.server()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with echo(tmp_path, "--otlp-endpoint", f"http://127.0.0.1:{port}") as service:
        async with channel((await service.started())["grpc"]) as opened:
            for header in (f"00-{trace}-{caller}-00", "00-garbage", f"00-{'1' * 32}-{caller}-00"):
                metadata = (("traceparent", header),)
                assert await opened.unary_unary("/test.Echo/back")(b"1", timeout=5, metadata=metadata) == b"1"
                assert await opened.unary_stream("/test.Echo/count_stream")(b"1", metadata=metadata).read() == b"0"
            kept = (("traceparent", f"00-{trace}-{caller}-01"),)
            await opened.unary_unary("/test.Echo/back")(b"1", timeout=5, metadata=kept)
        service.process.send_signal(signal.SIGTERM)
        assert (await service.finished())[0] == 0
    await server.stop(0)
    assert collector.services == {"headrace-echo"}
    seen = [(span.trace_id.hex(), span.parent_span_id.hex(), span.name) for span in collector.spans]
    assert seen == [(trace, caller, "test.Echo/back")] * 2  # the first waited for the verdict that the second brought
    codes = {a.key: a.value.string_value for a in collector.spans[0].attributes}
    assert codes["rpc.response.status_code"] == "OK"


async def test_a_frozen_peer_is_noticed_by_keepalive(tmp_path: Path) -> None:
    fast = [(f"grpc.{name}_ms", 200) for name in ("keepalive_time", "keepalive_timeout", "http2.ping_timeout")]
    async with echo(tmp_path) as service:
        announced = await service.started()
        async with channel(announced["grpc"], options=fast) as opened:
            stream = opened.unary_stream("/test.Echo/hold_stream")(b"")
            assert await stream.read() == b"held"
            service.process.send_signal(signal.SIGSTOP)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stream.read(), 10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
