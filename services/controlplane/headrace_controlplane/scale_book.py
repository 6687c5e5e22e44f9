"""How many replicas each pool is to have, why, and what was measured of them: kept on disk over a restart.

To lose the file loses history and measurements, and stops no replica: a pool that is not in it keeps what runs.
Decides nothing. Times are Unix milliseconds.
"""

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace_controlplane.autoscale import ScaleState
from headrace_controlplane.capacity import CapacityMeter
from headrace_controlplane.fleet.pools import Pool
from headrace_kit.files import write_atomically

log = logging.getLogger(__name__)
_KEPT_DECISIONS = 100
# A capacity that moved by less than this share since it was written is not written again.
_WORTH_WRITING = 0.05


@dataclass(frozen=True)
class Entry:
    """One decision as it is shown."""

    at_ms: int
    desired: int
    why: str
    detail: str
    alarm: bool


@dataclass
class Page:
    """One pool. `kept` replicas run: in a dry run not as many as `state.desired`, which is the last decision's."""

    kept: int
    state: ScaleState
    digest: str = ""
    """Names the settings that `meter` and `start_up_s` were measured with."""
    meter: CapacityMeter = field(default_factory=CapacityMeter)
    start_up_s: float | None = None
    decisions: deque[Entry] = field(default_factory=lambda: deque(maxlen=_KEPT_DECISIONS))

    def written(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "desired": self.state.desired,
            "digest": self.digest,
            "capacity": self.meter.capacity,
            "start_up_s": self.start_up_s,
            "decisions": [asdict(entry) for entry in self.decisions],
        }

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> "Page":
        page = cls(int(raw["kept"]), ScaleState(int(raw["desired"])), str(raw["digest"]))
        page.meter, page.start_up_s = CapacityMeter(raw["capacity"]), raw["start_up_s"]
        page.decisions.extend(Entry(**entry) for entry in raw["decisions"])
        return page


class ScaleBook:
    """`path` None: kept in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.pages: dict[str, Page] = _read(path) if path is not None else {}
        self._written: dict[str, dict[str, Any]] = {name: page.written() for name, page in self.pages.items()}

    def size(self, name: str, pool: Pool, num_running: int) -> int:
        """Replicas to keep. A pool that the book does not know has those that run, within its bounds."""
        if not pool.is_scaled:
            return pool.min
        page = self.pages.get(name)
        wanted = page.kept if page is not None else num_running
        return min(pool.most, max(pool.min, wanted))

    def open(self, name: str, pool: Pool, num_running: int, digest: str) -> Page:
        """The page of a pool; changed settings make old measurements void, and not the number of replicas."""
        size = self.size(name, pool, num_running)
        page = self.pages.setdefault(name, Page(size, ScaleState(size), digest))
        page.kept = size
        if page.digest != digest:
            page.digest, page.meter, page.start_up_s = digest, CapacityMeter(), None
        return page

    def note_start_up(self, name: str, seconds: float) -> None:
        """A replica of the pool became ready so long after it was started."""
        if name in self.pages:
            self.pages[name].start_up_s = seconds

    def keep_only(self, names: set[str]) -> None:
        """Forgets pools that left the fleet, or that are not scaled any more."""
        self.pages = {name: page for name, page in self.pages.items() if name in names}

    def save(self) -> None:
        """Writes what is worth it, if anything changed."""
        now = {name: page.written() for name, page in self.pages.items()}
        if self._path is None or not _differ(now, self._written):
            return
        try:
            write_atomically(self._path, json.dumps(now).encode())
        except OSError as error:  # the decisions are in force all the same; only the next start forgets them
            log.error("scale_book_not_written", extra={"path": self._path, "detail": str(error)})
        else:
            self._written = now


def _differ(now: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]) -> bool:
    if now.keys() != before.keys():
        return True
    return any(_page_differs(page, before[name]) for name, page in now.items())


def _page_differs(now: dict[str, Any], before: dict[str, Any]) -> bool:
    if {**now, "capacity": 0} != {**before, "capacity": 0} or (now["capacity"] is None) != (before["capacity"] is None):
        return True
    return now["capacity"] is not None and abs(now["capacity"] - before["capacity"]) > _WORTH_WRITING * now["capacity"]


def _read(path: Path) -> dict[str, Page]:
    try:
        return {name: Page.read(raw) for name, raw in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.error("scale_book_not_read", extra={"path": path, "detail": str(error)})
        return {}
