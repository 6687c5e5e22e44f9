"""The foreman: what dies is started again with back-off, what changes is replaced, what is unknown is not stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.v1 import worker_pb2
from headrace_controlplane.foreman import SETTLE_S, Foreman
from headrace_controlplane.launcher.worker_command import WorkerSite
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.registry import Record
from headrace_controlplane.roster import Roster
from tests.meters import Moved
from tests.unit.controlplane.fakes import FakeLauncher, scripted

LEASE_S = 10.0


@dataclass
class Scene:
    """A foreman on a virtual clock, with replicas that register when told."""

    ledger: Ledger
    roster: Roster
    launcher: FakeLauncher
    foreman: Foreman
    now: list[float] = field(default_factory=lambda: [0.0])

    def wait(self, seconds: float) -> None:
        """Ticks every tenth of a second; who lives sends heartbeats."""
        for _ in range(round(seconds * 10)):
            self.now[0] += 0.1
            for record in self.roster.registry.records():
                if self.launcher.replicas[record.id].alive:
                    self.roster.heartbeat(record)
            self.foreman.tick()

    def register(self, replica_id: str) -> None:
        self.roster.heartbeat(Record(replica_id, f"e{len(self.launcher.starts)}", "127.0.0.1:1", state="ready"))


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Scene:
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    roster = Roster(tmp_path / "replicas.pb", lease_s=LEASE_S, clock=clock)
    launcher = FakeLauncher()
    site = WorkerSite("127.0.0.1:1", tmp_path / "token", tmp_path / "weights", tmp_path / "workers")
    return Scene(ledger, roster, launcher, Foreman(ledger, roster, launcher, site, clock=clock), now)


async def test_a_fleet_gets_its_replicas(scene: Scene) -> None:
    scene.foreman.tick()
    assert scene.launcher.starts == []
    scene.ledger.apply(scripted(min=2), "")
    scene.foreman.tick()
    assert scene.launcher.starts == ["scripted-0", "scripted-1"]
    scene.wait(1.0)
    assert len(scene.launcher.starts) == 2


async def test_pools_of_other_launchers_are_not_its_business(scene: Scene) -> None:
    scene.ledger.apply(scripted(min=2, launcher="external"), "")
    scene.wait(1.0)
    assert scene.launcher.starts == []


async def test_a_death_ends_the_registration_and_is_followed_by_a_start(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    scene.foreman.tick()
    scene.register("scripted-0")
    scene.wait(0.1)
    scene.launcher.die("scripted-0")
    scene.foreman.tick()
    restarts = Moved("replica_restarts_total")
    assert scene.roster.registry.get("scripted-0") is None
    scene.wait(0.5)
    assert restarts() == 1
    assert scene.launcher.starts == ["scripted-0"] * 2


async def test_one_that_dies_again_and_again_is_started_ever_more_seldom(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    for _ in range(1200):
        scene.wait(0.1)
        if scene.launcher.replicas["scripted-0"].alive:
            scene.launcher.die("scripted-0")
    assert 8 <= len(scene.launcher.starts) <= 14
    (shown,) = scene.foreman.unregistered()
    assert (shown.state, shown.progress) == (worker_pb2.REPLICA_STATE_GONE, "ended: boom")


async def test_one_that_served_in_between_is_started_soon(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    scene.foreman.tick()
    for _ in range(20):
        scene.register("scripted-0")
        scene.wait(0.2)
        scene.launcher.die("scripted-0")
        scene.wait(0.5)
    assert len(scene.launcher.starts) == 21


async def test_a_changed_pool_is_replaced_without_a_gap(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    scene.foreman.tick()
    scene.register("scripted-0")
    scene.wait(LEASE_S + 1)
    scene.ledger.apply(scripted(max_waiting=7), "")
    scene.wait(0.5)
    assert scene.launcher.starts == ["scripted-0", "scripted-1"]
    assert not scene.launcher.replicas["scripted-0"].stopping
    scene.register("scripted-1")
    scene.wait(SETTLE_S - 0.1)
    assert not scene.launcher.replicas["scripted-0"].stopping, "routers may not have seen the new one yet"
    scene.wait(0.5)
    assert scene.launcher.replicas["scripted-0"].stopping
    scene.launcher.die("scripted-0")
    scene.wait(0.2)
    assert list(scene.launcher.replicas) == ["scripted-1"]


async def test_how_long_a_drain_may_take_is_no_reason_to_restart(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    scene.foreman.tick()
    scene.register("scripted-0")
    scene.ledger.apply(scripted() + "rollout: {drain_s: 1}", "")
    scene.wait(LEASE_S + 1)
    assert scene.launcher.starts == ["scripted-0"]


async def test_nothing_is_stopped_before_everyone_could_have_registered(scene: Scene) -> None:
    scene.ledger.apply(scripted(min=2), "")
    scene.foreman.tick()
    scene.ledger.apply(scripted(min=1), "")
    scene.wait(LEASE_S - 0.5)
    assert not any(seen.stopping for seen in scene.launcher.observe())
    scene.wait(1.0)
    assert sum(seen.stopping for seen in scene.launcher.observe()) == 1


async def test_a_retired_replica_is_replaced(scene: Scene) -> None:
    scene.ledger.apply(scripted(), "")
    scene.foreman.tick()
    scene.foreman.tick()
    assert scene.foreman.retire("scripted-0")
    assert not scene.foreman.retire("somebody-else")
    scene.wait(0.2)
    assert scene.launcher.starts == ["scripted-0", "scripted-1"]
