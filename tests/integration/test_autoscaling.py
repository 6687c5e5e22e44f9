"""The autoscaler over real processes: it starts workers of this host, drains them, and goes on after a restart."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.v1 import fleet_pb2, response_pb2, worker_pb2
from tests.integration.control_processes import Admin, Routes, Site, eventually

FLEET = """
models: {scripted: {source: scripted}}
pools:
  scripted:
    {model: scripted, engine: scripted, num_pages: 64, min: 0, max: 3, hold_s: 60,
     scaling: {capacity: 100, utilization: 1.0, down_after_s: 1, forecast: 0}}
rollout: {drain_s: 1}
"""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path, FLEET)
    yield made
    await made.close()


async def scale(admin: Admin) -> fleet_pb2.PoolScale:
    (found,) = (await admin.call("Show", fleet_pb2.ShowRequest())).scales
    assert isinstance(found, fleet_pb2.PoolScale)
    return found


async def num_ready(admin: Admin) -> int:
    return sum(each.state == worker_pb2.REPLICA_STATE_READY for each in (await admin.replicas()).values())


async def ask_at(routes: Routes, tokens_per_s: float) -> None:
    """Requests of fifty declared tokens, until cancelled."""
    bounds = response_pb2.Bounds(num_prompt_tokens=22, max_output_tokens=28, n=1)
    while True:
        await routes.pick(bounds=bounds)
        await asyncio.sleep(50 / tokens_per_s)


@contextlib.asynccontextmanager
async def load(routes: Routes, tokens_per_s: float) -> AsyncIterator[None]:
    task = asyncio.create_task(ask_at(routes, tokens_per_s))
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_from_zero_and_back_over_real_processes(site: Site) -> None:
    plane = await site.controlplane()
    router = await site.router(plane.grpc)
    admin, routes = site.admin(plane), site.routes(router)
    await admin.ready("scripted-0")  # it brings the model's card
    await eventually(lambda: is_empty(admin, site))
    # A request that finds no replica is held, and has one started: it is the load, too.
    picked = await routes.pick(timeout_s=60)
    assert picked.replica.id == "scripted-0"
    assert [one.num_desired for one in (await scale(admin)).decisions][-2:] == [0, 1]


@pytest.mark.slow
async def test_up_over_a_restart_and_down(site: Site) -> None:
    plane = await site.controlplane()
    router = await site.router(plane.grpc)
    admin, routes = site.admin(plane), site.routes(router)
    await admin.ready("scripted-0")
    async with load(routes, 250):
        await eventually(lambda: reaches(admin, 3), limit_s=60)
        pids, decisions = site.launched_pids(), (await scale(admin)).decisions
        assert len(pids) == 3
        plane.kill()
        plane = await site.controlplane(listen=plane.grpc)
        admin = site.admin(plane)
        await eventually(lambda: reports(admin), limit_s=60)
        assert site.launched_pids() == pids
        assert list((await scale(admin)).decisions)[: len(decisions)] == list(decisions)
    await eventually(lambda: is_empty(admin, site), limit_s=90)

    async def counts_none() -> bool:
        seen = await scale(admin)
        return (seen.num_desired, seen.num_ready, seen.num_starting) == (0, 0, 0)

    await eventually(counts_none)
    for index in range(3):
        log = (site.state / "workers" / f"scripted-{index}.log").read_text()
        assert log.count('"starting"') == 1, "nobody was started twice"


async def is_empty(admin: Admin, site: Site) -> bool:
    return not await admin.replicas() and not site.launched_pids()


async def reaches(admin: Admin, count: int) -> bool:
    return await num_ready(admin) == count


async def reports(admin: Admin) -> bool:
    """The new control plane has heard of its routers, and of their load."""
    now = await scale(admin)
    return now.HasField("load") and now.load > 0
