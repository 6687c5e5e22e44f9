"""What people see: tables, and live progress of a start. On a pipe, one line per change."""

import re
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.v1 import worker_pb2 as worker
from headrace_cli.platform.readiness import Readiness

_PERCENTAGE = re.compile(r"(\d+)\s*%")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A plain aligned table on standard output; wide cells wrap."""
    view = Table(*header, box=None, pad_edge=False)
    for row in rows:
        view.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(view)


class Progress:
    """Live state of a start: one row per service and replica, with the percentages that the worker reports."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), refresh_per_second=8) if sys.stderr.isatty() else None
        self._printed: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, seen: Readiness, elapsed_s: float) -> None:
        """Draws one look at the platform."""
        rows = _rows(seen)
        if self._live is not None:
            self._live.update(_grid(rows, elapsed_s))
            return
        for name, state in rows.items():
            step = _PERCENTAGE.sub(_quarter, state)
            if self._printed.get(name) != step:
                print(f"{elapsed_s:6.1f} s  {name}: {state}", file=sys.stderr, flush=True)
            self._printed[name] = step


def _quarter(found: "re.Match[str]") -> str:
    """A log line for each quarter is enough."""
    return f"{int(found.group(1)) // 25} quarters"


def _rows(seen: Readiness) -> dict[str, str]:
    rows = {name: "ready" if ready else "starting" for name, ready in seen.services.items()}
    for replica in seen.replicas:
        state = worker.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_").lower()
        rows[f"worker {replica.ref.id}"] = state if state == "ready" else replica.progress or state
    return rows


def _grid(rows: dict[str, str], elapsed_s: float) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, state in rows.items():
        mark = Text("●", style="green" if state == "ready" else "yellow")
        grid.add_row(mark, Text(name), Text(state))
    grid.add_row("", Text(f"{elapsed_s:.0f} s", style="dim"), "")
    return grid
