"""Where the devices of a new replica come from. Pure: counts of free devices in, counts to take out.

A tensor group exchanges activations twice per layer, so it belongs inside one fast-link domain (the devices of one
NVLink switch); pipeline stages send once per step and may lie apart. A group that would span domains is refused, with
what it would cost, unless the caller insists. Knows no host, no card and no process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Domain:
    """Devices that share a fast link; domains of one `node` share a host. Bandwidths are bytes/s per direction."""

    name: str
    node: str
    num_free: int
    fast_bandwidth: float = 450e9
    slow_bandwidth: float = 50e9


@dataclass(frozen=True)
class Share:
    """Devices taken from one domain."""

    domain: str
    num_devices: int


@dataclass(frozen=True)
class Placement:
    """One tuple of shares per pipeline stage; a stage of several shares spans domains and pays `slowdown`.

    `slowdown` is how many times as long an all-reduce takes, by bandwidth alone.
    """

    stages: tuple[tuple[Share, ...], ...]
    slowdown: float = 1.0

    @property
    def spans(self) -> bool:
        return any(len(shares) > 1 for shares in self.stages)


@dataclass(frozen=True)
class Refusal:
    """Why there is no place. `slowdown` is what spanning would cost where that alone is missing, else None."""

    detail: str
    slowdown: float | None = None


def place(domains: Sequence[Domain], tensor: int, pipeline: int = 1, *, span: bool = False) -> Placement | Refusal:
    """Devices for one replica of `pipeline` stages of `tensor` devices each.

    Each group goes where it leaves the fewest devices free (best fit), so that whole domains stay whole; stages prefer
    the node of the stage before.
    """
    assert tensor > 0 and pipeline > 0, "degrees are checked where they are read"
    free = {domain.name: domain for domain in domains}
    stages: list[tuple[Share, ...]] = []
    slowdown = 1.0
    for stage in range(pipeline):
        found = _best_fit(free, tensor, _node(free, stages))
        shares = (Share(found, tensor),) if found else _spread(free, tensor)
        if not shares:
            total = sum(domain.num_free for domain in domains)
            needed = tensor * pipeline
            return Refusal(f"{needed} devices are needed and {total} are free, {stage} of {pipeline} stages placed")
        cost = _slowdown(free, shares)
        if len(shares) > 1 and not span:
            most = max(domain.num_free for domain in free.values())
            detail = (
                f"a tensor group of {tensor} fits into no fast-link domain (the freest has {most}); across "
                f"{len(shares)} domains each all-reduce would take about {cost:.1f} times as long"
            )
            return Refusal(detail, cost)
        slowdown = max(slowdown, cost)
        for share in shares:
            domain = free[share.domain]
            free[share.domain] = replace(domain, num_free=domain.num_free - share.num_devices)
        stages.append(shares)
    return Placement(tuple(stages), slowdown)


def _node(free: dict[str, Domain], stages: Sequence[tuple[Share, ...]]) -> str:
    return free[stages[-1][-1].domain].node if stages else ""


def _best_fit(free: dict[str, Domain], tensor: int, near: str) -> str | None:
    fitting = [domain for domain in free.values() if domain.num_free >= tensor]
    best = min(fitting, key=lambda each: (each.node != near, each.num_free, each.name), default=None)
    return best.name if best else None


def _spread(free: dict[str, Domain], tensor: int) -> tuple[Share, ...]:
    """The group over as few domains as possible; nothing if there are not enough devices."""
    shares: list[Share] = []
    left = tensor
    for domain in sorted(free.values(), key=lambda each: (-each.num_free, each.name)):
        taken = min(left, domain.num_free)
        if taken:
            shares.append(Share(domain.name, taken))
            left -= taken
    return () if left else tuple(shares)


def _slowdown(free: dict[str, Domain], shares: Sequence[Share]) -> float:
    """A ring runs at the speed of its slowest link."""
    if len(shares) < 2:
        return 1.0
    used = [free[share.domain] for share in shares]
    return min(domain.fast_bandwidth for domain in used) / min(domain.slow_bandwidth for domain in used)
