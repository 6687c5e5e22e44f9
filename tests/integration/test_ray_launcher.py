"""Replicas on a real Ray cluster of several nodes: the contract of launchers, placement, and the loss of a node."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace_controlplane.launcher.ray_cluster import RayLauncher
from tests.integration.control_processes import Site, eventually
from tests.launchers import LauncherContract, only, spec, until

if TYPE_CHECKING:
    from tests.integration.ray_nodes import RayNodes, RayPlace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not here: make test-slow installs it"),
    # Ray's own warnings, in this process, are not ours.
    pytest.mark.filterwarnings("ignore"),
]
FLEET = """
models: {scripted: {source: scripted}}
pools: {scripted: {model: scripted, engine: scripted, num_pages: 64, min: 1, launcher: ray}}
rollout: {drain_s: 1}
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    # It takes seconds to import, also for those who only collect tests.
    from tests.integration.ray_nodes import RayNodes

    made = RayNodes(num_nodes=2)
    yield made
    made.close()


@pytest.fixture
def place(nodes: RayNodes, tmp_path: Path) -> Iterator[RayPlace]:
    from tests.integration.ray_nodes import RayPlace

    made = RayPlace(nodes, tmp_path)
    yield made
    made.close()


class TestRayLauncher(LauncherContract):
    """On a cluster of two nodes."""


def named(launcher: RayLauncher, replica_id: str) -> int:
    return next(seen.pid for seen in launcher.observe() if seen.spec.replica_id == replica_id)


def test_replicas_go_where_there_is_room_and_the_last_one_waits(place: RayPlace, nodes: RayNodes) -> None:
    launcher = place.launcher()
    for index in range(3):
        launcher.start(replace(spec(), replica_id=f"cpu-{index}"))
    until(lambda: sum(seen.pid > 0 for seen in launcher.observe()) == 2, place.limit_s)
    placed = [seen for seen in launcher.observe() if seen.pid]
    assert len({id(nodes.node_of(seen.pid)) for seen in placed}) == 2
    (waiting,) = [seen for seen in launcher.observe() if not seen.pid]
    until(lambda: "waits for a node with 1 CPUs free" in str(launcher.observe()), place.limit_s)
    launcher.stop(placed[0].spec.replica_id)
    until(lambda: named(launcher, waiting.spec.replica_id) > 0, place.limit_s)


def test_a_group_that_no_node_holds_is_not_split(place: RayPlace) -> None:
    """Two free CPUs on two nodes are no place for one replica of two."""
    launcher = place.launcher()
    launcher.start(replace(spec(), num_cpus=2))
    until(lambda: only(launcher).last_words == "waits for a node with 2 CPUs free", place.limit_s)
    assert only(launcher).alive


def test_a_lost_node_takes_its_replica_and_another_node_takes_the_next(place: RayPlace, nodes: RayNodes) -> None:
    launcher = place.launcher()
    launcher.start(spec())
    until(lambda: only(launcher).pid > 0, place.limit_s)
    lost = only(launcher).pid
    nodes.lose(nodes.node_of(lost))
    try:
        until(lambda: not psutil.pid_exists(lost), place.limit_s)
        until(lambda: not only(launcher).alive, place.limit_s)
        assert "its actor" in only(launcher).last_words
        launcher.start(spec())
        until(lambda: only(launcher).pid > 0, place.limit_s)
    finally:
        nodes.add()


@pytest.fixture
async def site(nodes: RayNodes, tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path, FLEET)
    yield made
    await made.close()


async def test_a_control_plane_serves_from_a_ray_cluster_and_survives_a_node(site: Site, nodes: RayNodes) -> None:
    """The whole way: fleet file, actor, worker, registration; then its node is lost and another one serves."""
    flags = ("--ray-address", nodes.address, "--ray-namespace", "site", "--ray-dir", str(site.root / "node"))
    plane = await site.controlplane(*flags)
    admin = site.admin(plane)

    async def serves() -> bool:
        found = (await admin.replicas()).get("scripted-0")
        return found is not None and bool(found.ref.epoch) and found.state == 3

    await eventually(serves, limit_s=120)
    first = (await admin.replicas())["scripted-0"]
    node = nodes.node_of(first.pid)
    assert first.ref.endpoint.startswith(f"{node.node_ip_address}:")
    nodes.lose(node)

    async def another_serves() -> bool:
        found = (await admin.replicas()).get("scripted-0")
        return found is not None and found.ref.epoch not in ("", first.ref.epoch) and found.state == 3

    await eventually(another_serves, limit_s=180)
