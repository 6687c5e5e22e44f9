from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_kit.health import Health
from tests.unit.kit.fakes import channel, serving

STATUS = health_pb2.HealthCheckResponse


def request(name: str = "") -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


def stub_of(opened: Any) -> Any:
    return health_pb2_grpc.HealthStub(opened)


async def test_the_whole_serves_while_every_critical_component_does() -> None:
    health = Health()
    assert health.ready
    health.add("engine")
    health.add("metrics", critical=False)
    assert not health.ready
    health.serving("engine")
    assert health.ready
    health.not_serving("engine", "no heartbeat")
    assert health.report() == {
        "ready": False,
        "draining": False,
        "components": {
            "engine": {"serving": False, "critical": True, "reason": "no heartbeat"},
            "metrics": {"serving": False, "critical": False, "reason": "starting"},
        },
    }


async def test_check_needs_no_token_and_knows_each_component() -> None:
    health = Health()
    health.add("engine")
    health.add("metrics", critical=False)
    health.serving("engine")
    async with serving(health=health) as address, channel(address, token=None) as opened:
        stub = stub_of(opened)
        found = [(await stub.Check(request(name), timeout=5)).status for name in ("", "engine", "metrics")]
        assert found == [STATUS.SERVING, STATUS.SERVING, STATUS.NOT_SERVING]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(request("bogus"), timeout=5)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_each_change_once_and_ends_with_the_process() -> None:
    health = Health()
    async with serving(health=health) as address, channel(address) as opened:
        watch, unknown = (aiter(stub_of(opened).Watch(request(name), timeout=10)) for name in ("", "late"))
        assert (await anext(watch)).status == STATUS.SERVING
        assert (await anext(unknown)).status == STATUS.SERVICE_UNKNOWN
        health.add("late")
        assert (await anext(watch)).status == STATUS.NOT_SERVING
        assert (await anext(unknown)).status == STATUS.NOT_SERVING
        health.not_serving("late", "another reason")
        health.serving("late")
        assert (await anext(watch)).status == STATUS.SERVING
        health.drain()
        health.serving("late")
        assert (await anext(watch)).status == STATUS.NOT_SERVING
        health.drain(end_watches=True)
        assert [answer async for answer in watch] == []


async def test_a_component_must_be_declared() -> None:
    with pytest.raises(AssertionError, match="undeclared health component ghost"):
        Health().serving("ghost")


async def test_a_watch_still_busy_writing_is_told_the_end() -> None:
    health = Health()
    watch = health.Watch(request(), None)
    assert (await anext(watch)).status == STATUS.SERVING
    health.drain(end_watches=True)
    assert [answer.status async for answer in watch] == [STATUS.NOT_SERVING]
