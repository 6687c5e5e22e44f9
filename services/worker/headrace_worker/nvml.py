"""What the driver says of this host's NVIDIA devices, as gauges. Without `nvidia-ml-py` or a driver: no series.

The library is optional (`headrace-worker[gpu-metrics]`); it is asked at each scrape, and never from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from headrace_kit import telemetry

_MILLI = 1e-3
_GAUGES: dict[str, tuple[str, Callable[[Any, Any], float]]] = {
    "gpu_utilization_ratio": (
        "Share of time in which a kernel ran",
        lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    ),
    "gpu_memory_used_bytes": (
        "Device memory in use, by whomever",
        lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).used,
    ),
    "gpu_memory_total_bytes": (
        "Device memory",
        lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).total,
    ),
    "gpu_power_watts": ("Power draw", lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) * _MILLI),
    "gpu_temperature_celsius": ("Temperature", lambda nvml, device: nvml.nvmlDeviceGetTemperature(device, 0)),
    "gpu_sm_clock_hertz": (
        "Clock of the processors",
        lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, 1) * 1e6,
    ),
}


class Nvml:
    """A collector over all devices. `library` is the module `pynvml`, initialized."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._devices = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for name, (meaning, _) in _GAUGES.items():
            yield GaugeMetricFamily(name, meaning, labels=("gpu",))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """A gauge that a device does not have has no series."""
        for name, (meaning, read) in _GAUGES.items():
            family = GaugeMetricFamily(name, meaning, labels=("gpu",))
            for index, device in enumerate(self._devices):
                try:
                    family.add_metric((str(index),), read(self._nvml, device))
                except self._nvml.NVMLError:
                    continue
            yield family


def register() -> bool:
    """Whether there is a driver to ask."""
    try:
        import pynvml
    except ImportError:
        return False
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    telemetry.REGISTRY.register(Nvml(pynvml))
    return True
