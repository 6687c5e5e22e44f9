"""The autoscaler at work on a virtual clock: real ledger, book, board and foreman, processes played by a table."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.v1 import fleet_pb2
from headrace_controlplane.demand import DemandBoard
from headrace_controlplane.foreman import Foreman
from headrace_controlplane.launcher.worker_command import WorkerSite
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.registry import Record
from headrace_controlplane.roster import Roster
from headrace_controlplane.scale_book import ScaleBook
from headrace_controlplane.scale_messages import pool_scales
from headrace_controlplane.scaler import Scaler
from headrace_controlplane.subscribers import Subscribers
from tests.meters import reading
from tests.unit.controlplane.fakes import FakeLauncher, scripted

LEASE_S = 10.0
TEMPER = "{capacity: 100, utilization: 1.0, down_after_s: 30, forecast: 0%s}"


def fleet(extra: str = "", **pool: object) -> str:
    return scripted(**{"min": 0, "max": 8, "scaling": TEMPER % extra, **pool})


@dataclass
class Scene:
    """A control plane's sizing of one pool; replicas are ready `start_up_s` after they were started."""

    ledger: Ledger
    path: Path
    start_up_s: float = 5.0
    now: float = 0.0
    load: float | None = 0.0
    held: int = 0
    routers: tuple[str, ...] = ("router-1",)
    silent: tuple[str, ...] = ()
    sizes: list[int] = field(default_factory=list)
    born: dict[str, float] = field(default_factory=dict)
    launcher: FakeLauncher = field(default_factory=FakeLauncher)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A control plane starts."""
        clock = lambda: self.now  # noqa: E731
        self.roster = Roster(self.path / "replicas.pb", lease_s=LEASE_S, clock=clock)
        self.board, self.subscribers = DemandBoard(clock), Subscribers()
        self.book = ScaleBook(self.path / "scaling.json")
        site = WorkerSite("127.0.0.1:1", self.path / "token", self.path / "weights", self.path / "workers")
        self.foreman = Foreman(self.ledger, self.roster, self.launcher, site, book=self.book, clock=clock)
        self.scaler = Scaler(
            self.ledger, self.board, self.subscribers, self.foreman, self.book, clock, lambda: 1000 + self.now
        )
        for name in self.routers:
            self.subscribers.add("router", name, "")

    def wait(self, seconds: float) -> None:
        """Second by second: replicas come and go, routers report, the scaler decides, the foreman acts."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self._play()
            if self.load is not None:
                self._report(self.load)
            self.scaler.tick()
            self.foreman.tick()
            self.sizes.append(sum(not each.stopping for each in self.launcher.observe()))

    def _play(self) -> None:
        for replica in self.launcher.observe():
            name = replica.spec.replica_id
            if not replica.alive:
                self.born.pop(name, None)
                continue
            age = self.now - self.born.setdefault(name, self.now)
            if replica.stopping:
                self.launcher.die(name)
                self.roster.remove(name)
            elif age >= self.start_up_s:
                self.roster.heartbeat(Record(name, "e", "127.0.0.1:1", pool="scripted", state="ready"))

    def _report(self, load: float) -> None:
        for name in set(self.routers) - set(self.silent):
            tokens = round(load / len(self.routers))
            held = self.held if name == self.routers[0] else 0
            model = fleet_pb2.ModelDemand(model="scripted", num_arrivals=1, num_prompt_tokens=tokens, num_held=held)
            self.board.note(fleet_pb2.DemandReport(router_id=name, interval_ms=1000, models=[model]))

    @property
    def shown(self) -> fleet_pb2.PoolScale:
        assert self.ledger.current is not None
        (scale,) = pool_scales(self.ledger.current.fleet.pools, self.scaler)
        return scale


@pytest.fixture
def scene(ledger: Ledger, tmp_path: Path) -> Scene:
    ledger.apply(fleet(), "")
    ledger.set_card("scripted", "1", b"card")
    return Scene(ledger, tmp_path)


async def test_replicas_follow_the_load_up_and_after_its_time_down(scene: Scene) -> None:
    scene.load = 350
    scene.wait(20)
    assert scene.sizes[-1] == 4
    scene.load = 150
    scene.wait(29)
    assert scene.sizes[-1] == 4
    # The load is the mean of ten seconds, so three are needed for a moment, and two only after that.
    scene.wait(60)
    assert scene.sizes[-1] == 2
    assert len(scene.launcher.starts) == 4
    assert "load 350" in scene.shown.decisions[0].detail


async def test_held_requests_start_one_from_zero(scene: Scene) -> None:
    scene.wait(3)
    assert scene.sizes[-1] == 0
    scene.held = 1
    scene.wait(2)
    assert scene.sizes[-1] == 1
    assert scene.shown.decisions[-1].why == "held"


async def test_b151_no_traffic_goes_to_min_and_no_data_goes_nowhere(scene: Scene) -> None:
    scene.load = 700
    scene.wait(20)
    assert scene.sizes[-1] == 7
    scene.load = None
    scene.wait(100)
    assert scene.sizes[-1] == 7
    assert (scene.shown.now.alarm, scene.shown.now.why) == (True, "stale")
    assert reading("scale_blind", pool=scene.shown.pool) == 1
    assert reading("scale_desired_replicas", pool=scene.shown.pool) == 7
    assert reading("scale_reserve_replicas", pool=scene.shown.pool) == scene.shown.num_reserve_left
    scene.load = 0.0
    scene.wait(45)
    assert scene.sizes[-1] == 0
    assert not scene.shown.now.alarm
    assert (
        reading("scale_blind", pool=scene.shown.pool) == reading("scale_desired_replicas", pool=scene.shown.pool) == 0
    )


async def test_one_silent_router_of_two_is_missing_data(scene: Scene) -> None:
    """Half of the reports look like half of the load."""
    scene.routers = ("router-1", "router-2")
    scene.begin()
    scene.load = 600
    scene.wait(20)
    assert scene.sizes[-1] == 6
    scene.silent = ("router-2",)
    scene.wait(100)
    assert scene.sizes[-1] == 6
    assert (scene.shown.now.alarm, scene.shown.now.why) == (True, "missing")
    assert "silent: router-2" in scene.shown.now.detail


async def test_a_router_that_left_is_not_missed(scene: Scene) -> None:
    scene.routers = ("router-1", "router-2")
    scene.begin()
    scene.load = 600
    scene.wait(20)
    scene.silent = ("router-2",)
    scene.subscribers.remove(next(each for each in scene.subscribers if each.instance == "router-2"))
    scene.wait(50)
    assert scene.sizes[-1] == 3


async def test_b152_a_loading_replica_is_dropped_first_and_hinders_nobody(scene: Scene) -> None:
    scene.start_up_s = 3.0
    scene.load = 500
    scene.wait(20)
    scene.start_up_s = 10_000.0
    scene.load = 600
    scene.wait(15)
    assert len(scene.launcher.starts) == 6
    scene.load = 500
    scene.wait(200)
    assert scene.sizes[-1] == 5
    assert "scripted-5" not in scene.launcher.replicas


async def test_b153_a_burst_shorter_than_its_start_up_moves_the_pool_once_up_and_once_down(scene: Scene) -> None:
    """120 -> 360 requests per second for a minute, ten tokens each, while a replica takes 90 s to start."""
    temper = "{capacity: 600, utilization: 1.0, down_after_s: 120, forecast: 0}"
    scene.ledger.apply(scripted(min=0, max=8, scaling=temper), "")
    scene.load = 1200
    scene.wait(20)
    assert scene.sizes[-1] == 2
    scene.start_up_s, before = 90.0, len(scene.sizes)
    scene.load = 3600
    scene.wait(60)
    scene.load = 1200
    scene.wait(400)
    course = scene.sizes[before:]
    changes = [later - earlier for earlier, later in pairwise(course) if later != earlier]
    assert changes == sorted(changes, reverse=True), "first up, then down"
    assert (max(course), course[-1], len(scene.launcher.starts)) == (6, 2, 6)
    stopped_at = next(at for at, (earlier, later) in enumerate(pairwise(course)) if later < earlier)
    assert stopped_at > 60 + 90, "all had served before one was stopped"


async def test_b155_one_that_loads_longer_than_the_idle_time_becomes_ready(scene: Scene) -> None:
    scene.ledger.apply(fleet(start_up_s=180.0), "")
    scene.start_up_s = 180.0
    scene.wait(2)
    scene.held = 1
    scene.wait(5)
    scene.held = 0
    scene.wait(180)
    assert (scene.shown.num_ready, len(scene.launcher.starts)) == (1, 1)
    scene.wait(35)
    assert scene.sizes[-1] == 0


async def test_one_that_dies_at_each_start_does_not_keep_the_others(scene: Scene) -> None:
    scene.load = 300
    scene.wait(20)
    scene.launcher.die("scripted-2")
    scene.start_up_s = 10_000.0
    for _ in range(60):
        scene.wait(1)
        if scene.launcher.replicas.get("scripted-2") and scene.launcher.replicas["scripted-2"].alive:
            scene.launcher.die("scripted-2")
    scene.load = 100
    scene.wait(90)
    assert scene.sizes[-1] == 1


async def test_a_restart_keeps_size_measurements_and_history(scene: Scene) -> None:
    scene.load = 500
    scene.wait(20)
    before = scene.shown
    scene.load = None
    scene.begin()
    scene.wait(60)
    assert (scene.sizes[-1], len(scene.launcher.starts)) == (5, 5)
    assert list(scene.shown.decisions)[: len(before.decisions)] == list(before.decisions)
    assert scene.shown.start_up_s == before.start_up_s < 10


async def test_a_lost_book_stops_nobody(scene: Scene) -> None:
    scene.load = 500
    scene.wait(20)
    (scene.path / "scaling.json").unlink()
    scene.begin()
    scene.wait(20)
    assert (scene.sizes[-1], len(scene.launcher.starts)) == (5, 5)


async def test_a_dry_run_decides_and_changes_nothing(scene: Scene) -> None:
    scene.load = 300
    scene.wait(20)
    scene.ledger.apply(fleet(", dry_run: true"), "")
    scene.load = 800
    scene.wait(20)
    assert (scene.sizes[-1], scene.shown.num_kept, scene.shown.num_desired) == (3, 3, 8)
    scene.ledger.apply(fleet(), "")
    scene.wait(2)
    assert scene.sizes[-1] == 8


async def test_the_reserve_is_there_is_spent_and_comes_back(scene: Scene) -> None:
    scene.ledger.apply(fleet(warm_reserve=2), "")
    scene.load = 200
    scene.wait(25)
    assert (scene.sizes[-1], scene.shown.num_reserve_left) == (4, 2)
    scene.load = 400
    # The load is the mean of ten seconds.
    scene.wait(11)
    assert scene.sizes[-1] == 6
    assert scene.shown.num_reserve_left < 2
    scene.wait(10)
    assert scene.shown.num_reserve_left == 2


async def test_constant_load_starts_once_and_stops_nobody(scene: Scene) -> None:
    scene.load = 430
    scene.wait(400)
    assert len(scene.launcher.starts) == 5
    assert scene.sizes[-1] == 5


async def test_the_first_replica_of_a_model_comes_without_demand(ledger: Ledger, tmp_path: Path) -> None:
    """Gateways refuse a model whose card no replica has brought yet, so nobody could ask for it."""
    ledger.apply(fleet(), "")
    scene = Scene(ledger, tmp_path)
    scene.wait(10)
    assert scene.sizes[-1] == 1
    assert "card" in scene.shown.now.detail
    ledger.set_card("scripted", "1", b"card")
    scene.wait(60)
    assert (scene.sizes[-1], len(scene.launcher.starts)) == (0, 1)


async def test_nothing_is_alarming_about_a_start(scene: Scene) -> None:
    scene.load = None
    scene.wait(3)
    scene.load = 100
    scene.wait(5)
    assert not any(entry.alarm for entry in scene.shown.decisions)


async def test_pools_of_one_model_share_its_load_by_their_size(ledger: Ledger, tmp_path: Path) -> None:
    text = fleet().replace(
        "pools:", "pools:\n" + fleet().split("pools:")[1].strip("\n").replace("scripted:", "two:", 1)
    )
    assert ledger.apply(text, "")
    ledger.set_card("scripted", "1", b"card")
    scene = Scene(ledger, tmp_path)
    scene.load = 800
    scene.wait(30)
    sizes = {name: page.kept for name, page in scene.book.pages.items()}
    assert sizes == {"scripted": 4, "two": 4}


async def test_a_pool_with_one_size_is_none_of_its_business(ledger: Ledger, tmp_path: Path) -> None:
    ledger.apply(scripted(min=2), "")
    scene = Scene(ledger, tmp_path)
    scene.load = 1e9
    scene.wait(10)
    assert (scene.sizes[-1], scene.scaler.looks) == (2, {})
