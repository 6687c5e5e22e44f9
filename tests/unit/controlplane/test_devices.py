"""Devices of a host, as they are named or as NVML tells, and replicas that are placed on them."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace_controlplane.foreman import Foreman
from headrace_controlplane.launcher import devices
from headrace_controlplane.launcher.worker_command import WorkerSite
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.roster import Roster
from tests.unit.controlplane.fakes import SCRIPTED, FakeLauncher


def frees(text: str, *used: int) -> list[tuple[int, ...]]:
    return [domain.free for domain in devices.without(devices.parse(text), used).domains]


def test_domains_are_named_by_their_devices() -> None:
    assert frees("4,5;2,0") == [(0, 2), (4, 5)]
    assert frees("0,1;2,3", 1, 2) == [(0,), (3,)]
    assert [domain.name for domain in devices.parse("7,6;1").domains] == ["1", "6"]


@pytest.mark.parametrize("text", ["0,", "a", "0;;1", "-1", "0,0", "0;0", "0 1"])
def test_what_names_no_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        devices.parse(text)


class Nvml(SimpleNamespace):
    """As much of NVML as is asked: four devices, of which these pairs are linked."""

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK, NVMLError = 3, 0, RuntimeError

    def __init__(self, *linked: set[int]) -> None:
        super().__init__(linked=linked)

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, what: int) -> int:
        assert what == self.NVML_P2P_CAPS_INDEX_NVLINK
        return self.NVML_P2P_STATUS_OK if {one, other} in self.linked else 4


@pytest.mark.parametrize(
    ("linked", "domains"),
    [
        ((), [(0,), (1,), (2,), (3,)]),
        (({0, 2}, {1, 3}), [(0, 2), (1, 3)]),
        (({0, 1}, {2, 3}, {1, 3}), [(0, 1, 2, 3)]),
    ],
)
def test_nvml_tells_which_devices_are_linked(
    monkeypatch: pytest.MonkeyPatch, linked: tuple[set[int], ...], domains: list[tuple[int, ...]]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*linked))
    host = devices.read()
    assert host is not None
    assert [domain.devices for domain in host.domains] == domains


def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert devices.read() is None


def test_a_process_sees_its_devices_alone_and_in_their_order() -> None:
    assert devices.environment((5, 4)) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "5,4"}
    assert devices.environment(()) == {}


@pytest.fixture
def hire(ledger: Ledger, tmp_path: Path) -> Callable[[str], tuple[Foreman, FakeLauncher]]:
    """A foreman of a host with these devices."""

    def made(text: str) -> tuple[Foreman, FakeLauncher]:
        site = WorkerSite("127.0.0.1:1", tmp_path / "t", tmp_path / "w", tmp_path / "d", devices=devices.parse(text))
        launcher = FakeLauncher()
        return Foreman(ledger, Roster(tmp_path / "r.pb", lease_s=1.0), launcher, site), launcher

    return made


Hire = Callable[[str], tuple[Foreman, FakeLauncher]]
CUDA = SCRIPTED.replace("{source: scripted}", "{source: 'dir:/m'}").replace("engine: scripted", "device: cuda")


def placed(launcher: FakeLauncher) -> dict[str, tuple[int, ...]]:
    return {name: seen.spec.devices for name, seen in launcher.replicas.items() if seen.alive}


async def test_replicas_get_devices_of_their_own(hire: Hire, ledger: Ledger) -> None:
    foreman, launcher = hire("0,1;2,3")
    ledger.apply(CUDA.replace("device: cuda", "device: cuda, min: 2, tp: 2"), "")
    foreman.tick()
    foreman.tick()
    assert placed(launcher) == {"scripted-0": (0, 1), "scripted-1": (2, 3)}


async def test_one_without_a_place_is_not_started_and_says_why(hire: Hire, ledger: Ledger) -> None:
    foreman, launcher = hire("0,1;2,3")
    ledger.apply(CUDA.replace("device: cuda", "device: cuda, tp: 4"), "")
    foreman.tick()
    assert launcher.starts == []
    (row,) = foreman.unregistered()
    assert (row.ref.id, row.pool) == ("scripted-0", "scripted")
    assert row.progress.startswith("no fast-link domain has room for a tensor group of 4")
    ledger.apply(CUDA.replace("device: cuda", "device: cuda, tp: 4, span_domains: true"), "")
    foreman.tick()
    assert placed(launcher) == {"scripted-0": (0, 1, 2, 3)}
    assert [each.progress for each in foreman.unregistered()] == ["starting"]


async def test_devices_of_the_dead_are_free_again(hire: Hire, ledger: Ledger) -> None:
    foreman, launcher = hire("0;1")
    ledger.apply(CUDA.replace("device: cuda", "device: cuda, min: 2"), "")
    foreman.tick()
    launcher.die("scripted-0")
    foreman.tick()
    assert placed(launcher) == {"scripted-1": (1,)}
    foreman._course["scripted-0"].restart_at = 0.0
    foreman.tick()
    assert placed(launcher) == {"scripted-0": (0,), "scripted-1": (1,)}


async def test_pools_on_cpu_need_no_device(hire: Hire, ledger: Ledger) -> None:
    foreman, launcher = hire("0")
    ledger.apply(SCRIPTED, "")
    foreman.tick()
    assert placed(launcher) == {"scripted-0": ()}
