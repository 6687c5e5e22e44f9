"""Domains follow from the links that NVML reports; without NVML there are none."""

from __future__ import annotations

import builtins
import socket
import sys
import types
from typing import Any

import pytest

from headrace_worker.parallel import links
from headrace_worker.parallel.links import group_by_links, name_domains, read_domains


@pytest.mark.parametrize(
    ("linked", "groups"),
    [
        ([], [[0], [1], [2], [3]]),
        ([(0, 1), (2, 3)], [[0, 1], [2, 3]]),
        ([(0, 1), (1, 2), (0, 2)], [[0, 1, 2], [3]]),
        ([(0, 3), (3, 2)], [[0, 2, 3], [1]]),
    ],
)
def test_devices_that_reach_one_another_are_a_group(linked: list[tuple[int, int]], groups: list[list[int]]) -> None:
    assert group_by_links(4, linked) == groups


def test_a_domain_is_named_after_its_host_and_lowest_device() -> None:
    groups = [[0, 1], [2, 3]]
    assert name_domains("node-7", groups, [0, 1]) == ("node-7:0",)
    assert name_domains("node-7", groups, [3, 2]) == ("node-7:2",)
    assert name_domains("node-7", groups, [1, 2]) == ("node-7:0", "node-7:2")


class FakeNvml(types.ModuleType):
    """Eight devices of which two fours are linked; torch sees the last six, in NVML's order."""

    class NVMLError(Exception):
        pass

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 3, 0

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if one // 4 == other // 4 else 5


def test_domains_are_those_of_the_devices_that_the_group_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    monkeypatch.setattr(links, "_visible_uuids", lambda num: [str(number) for number in range(2, 2 + num)])
    monkeypatch.setattr(socket, "gethostname", lambda: "node")
    assert read_domains(2) == ("node:0",)
    assert read_domains(4) == ("node:0", "node:4")


def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "pynvml":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    assert read_domains(2) == ()


def test_a_driver_that_does_not_answer_is_no_reason_not_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml("pynvml")

    def fail() -> None:
        raise fake.NVMLError("driver not loaded")

    monkeypatch.setattr(fake, "nvmlInit", fail, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert read_domains(1) == ()
