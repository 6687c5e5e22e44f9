"""NVIDIA gauges: from the library's own functions, and no series where it is absent or a device lacks a sensor."""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest

from headrace_worker import nvml


class Library:
    """The functions of pynvml that are used, over two devices; the second has no power sensor."""

    NVMLError = type("NVMLError", (Exception,), {})

    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUtilizationRates = staticmethod(lambda _: SimpleNamespace(gpu=75))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: SimpleNamespace(used=7, total=10))
    nvmlDeviceGetTemperature = staticmethod(lambda _, sensor: 61)
    nvmlDeviceGetClockInfo = staticmethod(lambda _, kind: 1980)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        if device == 1:
            raise self.NVMLError
        return 350_000


def test_every_gauge_has_its_unit() -> None:
    registry = prometheus_client.CollectorRegistry()
    registry.register(nvml.Nvml(Library()))
    names = {
        "gpu_utilization_ratio": 0.75,
        "gpu_memory_used_bytes": 7.0,
        "gpu_memory_total_bytes": 10.0,
        "gpu_power_watts": 350.0,
        "gpu_temperature_celsius": 61.0,
        "gpu_sm_clock_hertz": 1.98e9,
    }
    assert {name: registry.get_sample_value(name, {"gpu": "0"}) for name in names} == names
    assert registry.get_sample_value("gpu_power_watts", {"gpu": "1"}) is None
    assert registry.get_sample_value("gpu_utilization_ratio", {"gpu": "1"}) == 0.75


def test_without_the_library_there_are_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    assert nvml.register() is False
