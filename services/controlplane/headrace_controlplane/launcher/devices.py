"""The CUDA devices of this host by fast-link domain: as an operator names them, or as NVML does. Places nothing.

Numbers are those of NVML, which CUDA has too under CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

import logging
import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from headrace_controlplane.placement import Domain, Host

log = logging.getLogger(__name__)
_FORM = re.compile(r"\d+(,\d+)*(;\d+(,\d+)*)*")


def parse(text: str) -> Host:
    """``0,1,2,3;4,5,6,7``: domains of devices. Raises ValueError."""
    if not _FORM.fullmatch(text):
        raise ValueError(f'expected device numbers such as 0,1;2,3, got "{text}"')
    groups = [[int(number) for number in group.split(",")] for group in text.split(";")]
    numbers = [number for group in groups for number in group]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f'a device is named twice in "{text}"')
    return host_of(groups)


def read() -> Host | None:
    """What NVML says; None where it is not installed or has no answer, and launched workers choose themselves."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
        return host_of(_groups(pynvml))
    except pynvml.NVMLError as error:
        log.info("devices_unknown", extra={"detail": str(error)})
        return None


def host_of(groups: Iterable[Collection[int]]) -> Host:
    """This host with these domains, all devices free; a domain is named by its lowest device, as workers name it."""
    name = socket.gethostname()
    domains = [tuple(sorted(group)) for group in groups]
    return Host(name, tuple(Domain(str(devices[0]), devices, devices) for devices in sorted(domains)))


def without(host: Host, used: Collection[int]) -> Host:
    """The host with these devices taken."""
    left = [tuple(device for device in domain.free if device not in used) for domain in host.domains]
    return replace(host, domains=tuple(replace(d, free=free) for d, free in zip(host.domains, left, strict=True)))


def environment(devices: Collection[int]) -> dict[str, str]:
    """What a process is told so that it sees these devices alone, in this order; nothing for none."""
    if not devices:
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}


def _groups(nvml: Any) -> list[set[int]]:
    """Devices that reach one another over NVLink, in any number of hops."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    groups = [{device} for device in range(len(handles))]
    for one in range(len(handles)):
        for other in range(one):
            if _is_linked(nvml, handles[one], handles[other]):
                joined = [group for group in groups if one in group or other in group]
                groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return groups


def _is_linked(nvml: Any, one: Any, other: Any) -> bool:
    return bool(nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK)
