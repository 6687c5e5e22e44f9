"""On which devices the group of a replica runs. Pure: hosts and a wanted shape in, devices or a refusal out.

A fast-link domain is a set of devices that reach one another over fast links (NVLink, NVSwitch). Every layer of a
tensor group waits for its all-reduces, so a group that spans domains runs at the pace of the slow links between them;
the stages of a pipeline hand over once per step and may lie in different domains. One replica's ranks are children of
one process, so its whole group is on one host. Knows no model, no launcher and no library of a vendor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

# An all-reduce of this size is what costs are told for: 64 rows of 8,192 values of 2 bytes.
_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Domain:
    """Devices of one host that reach one another over fast links, and those of them that are free."""

    name: str
    devices: tuple[int, ...]
    free: tuple[int, ...]


@dataclass(frozen=True)
class Host:
    """``fast_gb_s`` within a domain and ``slow_gb_s`` between domains, per device and direction; 0 = not known."""

    name: str
    domains: tuple[Domain, ...]
    fast_gb_s: float = 0.0
    slow_gb_s: float = 0.0

    @property
    def num_free(self) -> int:
        return sum(len(domain.free) for domain in self.domains)


@dataclass(frozen=True)
class Shape:
    """What a pool wants: ``pp`` tensor groups of ``tp`` devices; ``span``: across domains rather than not at all."""

    tp: int
    pp: int = 1
    span: bool = False

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True)
class Placed:
    """Devices of each stage, in the order of its ranks; ``cost``: what spanning domains costs, empty if none does."""

    host: str
    stages: tuple[tuple[int, ...], ...]
    cost: str = ""


@dataclass(frozen=True)
class Refused:
    """Why it fits nowhere, with the numbers."""

    reason: str


def place(shape: Shape, hosts: Sequence[Host]) -> Placed | Refused:
    """The fewest domains, then the least room left over, so that large groups find large domains later."""
    assert shape.tp > 0 and shape.pp > 0, "a group has devices"
    fitting = [(rank, stages, host) for host in hosts for rank, stages in [_within(shape, host)] if stages]
    if fitting:
        _, stages, host = min(fitting, key=lambda each: (each[0], each[2].name))
        return Placed(host.name, stages)
    roomy = [host for host in hosts if host.num_free >= shape.num_devices]
    if not roomy:
        return Refused(_too_small(shape, hosts))
    host = min(roomy, key=lambda each: (each.num_free, each.name))
    cost = _cost(shape, host)
    if not shape.span:
        wanted = f"a tensor group of {shape.tp}" if shape.pp == 1 else f"{shape.pp} tensor groups of {shape.tp}"
        return Refused(
            f"no fast-link domain has room for {wanted} ({_rooms(hosts)}); {cost}: span_domains places it all the same"
        )
    return Placed(host.name, _across(shape, host), cost)


def all_reduce_s(num_bytes: int, num_devices: int, gb_s: float) -> float:
    """Seconds of a ring all-reduce at ``gb_s`` per device: each sends 2 (n - 1) / n of the message."""
    return 2 * (num_devices - 1) / num_devices * num_bytes / (gb_s * 1e9) if gb_s else 0.0


def _within(shape: Shape, host: Host) -> tuple[tuple[int, int], tuple[tuple[int, ...], ...]]:
    """((domains used, devices left over there), stages); no stages if a tensor group would span domains."""
    stages: list[tuple[int, ...]] = []
    left_over = num_used = 0
    for domain in _in_order(shape, host):
        take = min(shape.pp - len(stages), len(domain.free) // shape.tp)
        free = iter(sorted(domain.free))
        stages += [tuple(islice(free, shape.tp)) for _ in range(take)]
        num_used += take > 0
        left_over += len(domain.free) - take * shape.tp if take else 0
    return (num_used, left_over), tuple(stages) if len(stages) == shape.pp else ()


def _in_order(shape: Shape, host: Host) -> Iterator[Domain]:
    """The smallest domain that takes the whole group alone, if one does; else the roomiest first."""
    alone = [domain for domain in host.domains if len(domain.free) >= shape.num_devices]
    if alone:
        yield min(alone, key=lambda domain: (len(domain.free), domain.name))
        return
    yield from sorted(host.domains, key=lambda domain: (-(len(domain.free) // shape.tp), domain.name))


def _across(shape: Shape, host: Host) -> tuple[tuple[int, ...], ...]:
    """Domain after domain, the roomiest first, so that as few groups as possible are cut, and in as few parts."""
    domains = sorted(host.domains, key=lambda domain: (-len(domain.free), domain.name))
    devices = iter([device for domain in domains for device in sorted(domain.free)])
    return tuple(tuple(islice(devices, shape.tp)) for _ in range(shape.pp))


def _cost(shape: Shape, host: Host) -> str:
    if not (host.fast_gb_s and host.slow_gb_s):
        return "the links between domains are slower, by how much was not measured"
    fast, slow = (all_reduce_s(_MESSAGE_BYTES, shape.tp, gb_s) * 1e6 for gb_s in (host.fast_gb_s, host.slow_gb_s))
    return (
        f"across domains an all-reduce of 1 MiB over {shape.tp} devices takes {slow:.0f} us instead of {fast:.0f} "
        f"({host.slow_gb_s:g} GB/s instead of {host.fast_gb_s:g}), twice a layer"
    )


def _too_small(shape: Shape, hosts: Sequence[Host]) -> str:
    most = max((host.num_free for host in hosts), default=0)
    return f"{shape.num_devices} devices on one host are wanted, and {most} are free on the roomiest ({_rooms(hosts)})"


def _rooms(hosts: Sequence[Host]) -> str:
    rooms = [f"{host.name}/{d.name}: {len(d.free)} of {len(d.devices)} free" for host in hosts for d in host.domains]
    return ", ".join(rooms) or "no devices"
