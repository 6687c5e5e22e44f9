"""Which devices of this host share fast links (NVLink, NVSwitch), as NVML says. Absent without NVML: no domain.

A domain is named HOST:LINK, LINK being its lowest device: a tensor group within one pays link speed, across two the
speed of the host's bus.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Sequence
from typing import Any

log = logging.getLogger(__name__)


def group_by_links(num_devices: int, linked: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Devices that reach one another over the given links, in any number of hops. Pure."""
    group_of = {device: [device] for device in range(num_devices)}
    for one, other in linked:
        if group_of[one] is not group_of[other]:
            merged = sorted(group_of[one] + group_of[other])
            group_of.update(dict.fromkeys(merged, merged))
    return sorted({id(group): group for group in group_of.values()}.values())


def name_domains(host: str, groups: Sequence[Sequence[int]], devices: Iterable[int]) -> tuple[str, ...]:
    """The domains of these devices, each once; a device without fast links is one of its own. Pure."""
    firsts = {device: group[0] for group in groups for device in group}
    return tuple(dict.fromkeys(f"{host}:{firsts[device]}" for device in devices))


def read_domains(num_devices: int) -> tuple[str, ...]:
    """Of the first `num_devices` devices that torch sees; empty where NVML is not installed or has no answer."""
    try:
        import pynvml
    except ModuleNotFoundError:
        log.info("domains_unknown: nvidia-ml-py is not installed")
        return ()
    try:
        pynvml.nvmlInit()
        return _read(pynvml, num_devices)
    except pynvml.NVMLError as error:
        log.warning("domains_unknown: %s", error)
        return ()


def _read(nvml: Any, num_devices: int) -> tuple[str, ...]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    linked = [
        (one, other)
        for one in range(len(handles))
        for other in range(one + 1, len(handles))
        if _is_fast(nvml, handles[one], handles[other])
    ]
    numbers = {_uuid(nvml, handle): number for number, handle in enumerate(handles)}
    devices = [numbers[uuid] for uuid in _visible_uuids(num_devices) if uuid in numbers]
    return name_domains(socket.gethostname(), group_by_links(len(handles), linked), devices)


def _is_fast(nvml: Any, one: Any, other: Any) -> bool:
    status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return (uuid.decode() if isinstance(uuid, bytes) else str(uuid)).removeprefix("GPU-")


def _visible_uuids(num_devices: int) -> list[str]:
    import torch

    return [str(torch.cuda.get_device_properties(number).uuid) for number in range(num_devices)]
