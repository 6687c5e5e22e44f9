"""The four resources a step can run out of, and how much of each it takes. Knows no model and no card."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Resource(StrEnum):
    """What can bind a replica."""

    TENSOR_COMPUTE = "tensor_compute"
    HBM_CAPACITY = "hbm_capacity"
    HBM_BANDWIDTH = "hbm_bandwidth"
    LINKS = "links"


@dataclass(frozen=True)
class OpCost:
    """One operation on one rank: predicted seconds, work, and the seconds of that work at the published peaks."""

    name: str
    time_s: float
    flops: float = 0.0
    memory_bytes: float = 0.0
    link_bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    link_s: float = 0.0

    def times(self, count: float) -> "OpCost":
        """The same operation `count` times in a row."""
        return OpCost(
            self.name,
            self.time_s * count,
            self.flops * count,
            self.memory_bytes * count,
            self.link_bytes * count,
            self.compute_s * count,
            self.memory_s * count,
            self.link_s * count,
        )


@dataclass(frozen=True)
class Binding:
    """The resource that binds, and the share of each: time at peak rate / step time, and bytes held / HBM."""

    resource: Resource
    shares: dict[Resource, float]

    @property
    def share(self) -> float:
        """Share of the binding resource."""
        return self.shares[self.resource]


@dataclass(frozen=True)
class StepCost:
    """One step of a replica, summed over the ranks that a token passes (one per stage)."""

    ops: tuple[OpCost, ...]
    num_stages: int = 1

    @property
    def time_s(self) -> float:
        """Seconds from the first operation to the last of one microbatch."""
        return sum(op.time_s for op in self.ops)

    @property
    def flops(self) -> float:
        """FLOPs of the ranks on the path."""
        return sum(op.flops for op in self.ops)

    @property
    def memory_bytes(self) -> float:
        """HBM bytes of the ranks on the path."""
        return sum(op.memory_bytes for op in self.ops)

    @property
    def link_bytes(self) -> float:
        """Bytes that the ranks on the path send to peers."""
        return sum(op.link_bytes for op in self.ops)

    def time_by_name(self) -> dict[str, float]:
        """Seconds per kind of operation."""
        table: dict[str, float] = {}
        for op in self.ops:
            table[op.name] = table.get(op.name, 0.0) + op.time_s
        return table

    def binding(self, held_share: float, next_share: float) -> Binding:
        """Which resource binds when `held_share` of HBM is held and one more sequence would make it `next_share`.

        HBM capacity binds once one more sequence does not fit; until then the rate that the step uses most of.
        """
        time_s = max(self.time_s, 1e-12)
        shares = {
            Resource.TENSOR_COMPUTE: _total(op.compute_s for op in self.ops) / time_s,
            Resource.HBM_BANDWIDTH: _total(op.memory_s for op in self.ops) / time_s,
            Resource.LINKS: _total(op.link_s for op in self.ops) / time_s,
        }
        resource = Resource.HBM_CAPACITY if next_share > 1 else max(shares, key=lambda each: shares[each])
        return Binding(resource, {**shares, Resource.HBM_CAPACITY: held_share})


def _total(values: Iterable[float]) -> float:
    return sum(values, 0.0)
