"""The router as a process: it goes on without a control plane, and never picks what is dead."""

import asyncio
import json
import shutil
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import worker_pb2, worker_pb2_grpc
from tests.integration.control_processes import EXTERNAL, FLEET, Routes, Site, eventually


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await made.close()


async def test_it_routes_while_the_control_plane_is_away_and_after_its_own_restart(site: Site) -> None:
    plane = await site.controlplane()
    await site.admin(plane).ready("scripted-0")
    router = await site.router(plane.grpc)
    first = await site.routes(router).pick()
    plane.kill()
    for _ in range(20):
        assert (await site.routes(router).pick(timeout_s=2)).replica == first.replica
    router.kill()
    again = await site.router(plane.grpc)
    assert (await site.routes(again).pick()).replica == first.replica
    assert again.readyz() == 200


async def test_a_control_plane_that_comes_back_with_nothing_costs_no_request(site: Site) -> None:
    plane = await site.controlplane()
    await site.admin(plane).ready("scripted-0")
    routes = site.routes(await site.router(plane.grpc))
    await routes.pick()
    stop, picks = asyncio.Event(), []

    async def keep_asking() -> None:
        while not stop.is_set():
            picks.append(await routes.pick())

    asking = asyncio.create_task(keep_asking())
    plane.kill()
    old = site.launched_pids()
    shutil.rmtree(site.state)
    again = await site.controlplane(listen=plane.grpc)
    admin = site.admin(again)

    async def replaced() -> bool:
        """The worker that the new control plane started has taken the id over, and the requests."""
        found = (await admin.replicas()).get("scripted-0")
        return found is not None and site.launched_pids() == [found.pid] and picks[-1].replica == found.ref

    await eventually(replaced)
    stop.set()
    await asking

    async def old_left() -> bool:
        return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in old)

    await eventually(old_left)


async def test_a_dead_worker_gets_nothing_and_a_model_without_workers_says_so(site: Site) -> None:
    """B74, with the control link of the router cut for good by the death of the control plane."""
    site.fleet = EXTERNAL
    plane = await site.controlplane()
    workers = [await site.worker(plane.grpc, name) for name in ("w-1", "w-2")]
    await site.admin(plane).ready("w-1", "w-2")
    router = await site.router(plane.grpc)
    routes = site.routes(router)
    await eventually(lambda: both_seen(routes))
    plane.kill()
    workers[1].kill()
    health: Any = health_pb2_grpc.HealthStub(site.channel(router.grpc))

    async def out() -> bool:
        return {(await routes.pick()).replica.id for _ in range(5)} == {"w-1"}

    await eventually(out)
    assert Counter([(await routes.pick()).replica.id for _ in range(100)]) == {"w-1": 100}
    request = health_pb2.HealthCheckRequest(service="model:scripted")
    assert (await health.Check(request, timeout=30)).status == health_pb2.HealthCheckResponse.SERVING
    workers[0].kill()

    async def told() -> bool:
        answer = await health.Check(request, timeout=30)
        return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)

    await eventually(told)
    assert router.readyz() == 200
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await routes.pick()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_lease_of_a_dead_worker_ends_and_it_leaves_every_list(site: Site) -> None:
    site.fleet = EXTERNAL
    plane = await site.controlplane("--lease-s", "2")
    workers = [await site.worker(plane.grpc, name) for name in ("w-1", "w-2")]
    admin = site.admin(plane)
    await admin.ready("w-1", "w-2")
    workers[1].kill()
    await admin.ready("w-1")


async def test_a_changed_pool_is_rolled_without_a_failed_request(site: Site) -> None:
    plane = await site.controlplane("--lease-s", "5")
    admin = site.admin(plane)
    before = (await admin.ready("scripted-0"))["scripted-0"]
    routes = site.routes(await site.router(plane.grpc))
    await routes.pick()
    stop, picks = asyncio.Event(), []

    async def keep_asking() -> None:
        while not stop.is_set():
            picks.append((await routes.pick(timeout_s=5)).held_ms)

    asking = asyncio.create_task(keep_asking())
    await admin.apply(FLEET.replace("num_pages: 64", "num_pages: 96"))
    after = (await admin.ready("scripted-1"))["scripted-1"]
    stop.set()
    await asking
    assert after.pid != before.pid
    assert max(picks) < 5000, "nobody was held for a start"
    assert len(picks) > 10


async def test_a_request_from_zero_is_held_until_its_worker_is_there(site: Site) -> None:
    """Decision 16, with a real start in between."""
    site.fleet = EXTERNAL.replace("hold_s: 0.5", "hold_s: 60")
    plane = await site.controlplane()
    routes = site.routes(await site.router(plane.grpc))
    held = asyncio.create_task(routes.pick(timeout_s=30))
    await site.worker(plane.grpc, "w-1")
    answer = await held
    assert answer.replica.id == "w-1"
    assert answer.held_ms > 0


async def both_seen(routes: Routes) -> bool:
    """Both workers are ready for the router: two undecided requests at once spread over them."""
    picks = await asyncio.gather(*(routes.pick() for _ in range(8)))
    return len({pick.replica.id for pick in picks}) == 2


async def test_drain_beats_readiness(site: Site) -> None:
    """B76: SIGTERM to a worker that works: from then on it is picked no more, and it ends when its work is done."""
    site.fleet = EXTERNAL
    plane = await site.controlplane()
    workers = [await site.worker(plane.grpc, name) for name in ("w-1", "w-2")]
    epoch = (await site.admin(plane).ready("w-1", "w-2"))["w-1"].ref.epoch
    routes = site.routes(await site.router(plane.grpc))
    await eventually(lambda: both_seen(routes))
    stub: Any = worker_pb2_grpc.EngineStub(site.channel(workers[0].grpc))
    attach = stub.Attach()
    await attach.write(worker_pb2.Command(hello=worker_pb2.Hello(gateway_id="g", gateway_epoch="1")))
    prompt = array("I", [256, *json.dumps(["!rate(20)", *["x"] * 30]).encode()]).tobytes()
    submit = worker_pb2.Submit(
        handle=1,
        response_id="r1",
        attempt=1,
        replica_epoch=epoch,
        prompt_ids=prompt,
        max_output_tokens=40,
        n=1,
        queue_deadline_ms=5000,
        fair_key="k",
        tenant_digest=b"t",
    )
    await attach.write(worker_pb2.Command(submit=submit))
    frames: list[worker_pb2.Frame] = []

    async def until_frame(has: Callable[[worker_pb2.Frame], Any]) -> worker_pb2.Frame:
        while not (frames and has(frames[-1])):
            frames.append(await asyncio.wait_for(attach.read(), 30))
            assert not frames[-1].refused
        return frames[-1]

    await until_frame(lambda frame: frame.handles)
    workers[0].child.terminate()

    async def draining() -> bool:
        return {(await routes.pick()).replica.id for _ in range(30)} == {"w-2"}

    await eventually(draining)
    assert Counter([(await routes.pick()).replica.id for _ in range(50)]) == {"w-2": 50}
    assert workers[0].child.poll() is None, "it still works"
    (final,) = (await until_frame(lambda frame: frame.finals)).finals
    assert final.kind == worker_pb2.FINAL_KIND_STOP
    attach.cancel()
    assert await asyncio.to_thread(workers[0].child.wait, 20) == 0
