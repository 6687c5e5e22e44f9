"""Where the device time went, and what it cost. Pure: whole microseconds in, whole microseconds out.

A segment is the time for which one process held its devices at one price. What its responses took of it is booked by
what came of them; the rest of the segment is idle. So the parts of a segment add up to the segment, exactly.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

Part = Literal["useful", "failed", "cancelled", "withheld", "recompute", "idle"]
_US_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Segment:
    """One process of a replica over [from_ms, to_ms), Unix milliseconds."""

    replica_id: str
    epoch: str
    pool: str
    model: str
    num_devices: int
    price_per_gpu_hour: float
    from_ms: int
    to_ms: int

    @property
    def device_us(self) -> int:
        return (self.to_ms - self.from_ms) * 1000 * self.num_devices


@dataclass(frozen=True, slots=True)
class Work:
    """What one attempt did: ``busy_us`` of each of its replica's devices, for ``num_tokens`` generated tokens."""

    replica_id: str
    epoch: str
    settled_at_ms: int
    model: str
    tenant: str
    slo_class: str
    part: Part
    busy_us: int
    num_tokens: int


class Account(NamedTuple):
    """What one line of the report is about; idle time has no tenant and no class."""

    pool: str
    model: str
    tenant: str
    slo_class: str
    part: Part


@dataclass(slots=True)
class Amount:
    """Device time, money and tokens of one line."""

    device_us: int = 0
    cost: float = 0.0
    num_tokens: int = 0


def clip(segments: Iterable[Segment], from_ms: int, to_ms: int) -> list[Segment]:
    """The parts of segments that lie in [from_ms, to_ms)."""
    found = []
    for one in segments:
        start, end = max(one.from_ms, from_ms), min(one.to_ms, to_ms)
        if start < end:
            found.append(
                Segment(
                    *(one.replica_id, one.epoch, one.pool, one.model, one.num_devices, one.price_per_gpu_hour),
                    *(start, end),
                )
            )
    return found


def bill(segments: Iterable[Segment]) -> Amount:
    """What the devices cost, whatever they did."""
    total = Amount()
    for one in segments:
        total.device_us += one.device_us
        total.cost += _money(one.device_us, one.price_per_gpu_hour)
    return total


def account(segments: Sequence[Segment], works: Iterable[Work]) -> dict[Account, Amount]:
    """The bill, split.

    Work that was settled within a segment and done before it can be more than the segment holds: each then takes its
    share of the segment. Work of a process that no segment knows costs nothing and stands under the pool "".
    """
    by_process: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for index in sorted(range(len(segments)), key=lambda one: segments[one].from_ms):
        by_process[segments[index].replica_id, segments[index].epoch].append(index)
    by_segment: list[list[Work]] = [[] for _ in segments]
    lines: defaultdict[Account, Amount] = defaultdict(Amount)
    for work in works:
        home = _home(segments, by_process.get((work.replica_id, work.epoch), ()), work.settled_at_ms)
        if home is None:
            _book(lines, _account("", work), work.busy_us, 0.0, work.num_tokens)
        else:
            by_segment[home].append(work)
    for segment, done in zip(segments, by_segment, strict=True):
        times_us = _fit([work.busy_us * segment.num_devices for work in done], segment.device_us)
        for work, device_us in zip(done, times_us, strict=True):
            _book(lines, _account(segment.pool, work), device_us, segment.price_per_gpu_hour, work.num_tokens)
        idle = Account(segment.pool, segment.model, "", "", "idle")
        _book(lines, idle, segment.device_us - sum(times_us), segment.price_per_gpu_hour, 0)
    return dict(lines)


def _account(pool: str, work: Work) -> Account:
    return Account(pool, work.model, work.tenant, work.slo_class, work.part)


def _book(lines: defaultdict[Account, Amount], line: Account, device_us: int, price: float, num_tokens: int) -> None:
    amount = lines[line]
    amount.device_us += device_us
    amount.cost += _money(device_us, price)
    amount.num_tokens += num_tokens


def _fit(times_us: Sequence[int], most_us: int) -> list[int]:
    """The times, or where they are more than ``most_us`` their shares of it: whole numbers that sum to it."""
    total = sum(times_us)
    if total <= most_us:
        return list(times_us)
    edges = [most_us * upto // total for upto in accumulate(times_us, initial=0)]
    return [after - before for before, after in pairwise(edges)]


def _home(segments: Sequence[Segment], own: Sequence[int], at_ms: int) -> int | None:
    """Of a process's own segments, by start, the one in which the work was settled: the last that began before."""
    begun = bisect_right(own, at_ms, key=lambda index: segments[index].from_ms)
    return own[max(begun - 1, 0)] if own else None


def _money(device_us: int, price_per_gpu_hour: float) -> float:
    return device_us / _US_PER_HOUR * price_per_gpu_hour
