"""What the sections share: the device, timing, and rows that are on disk as soon as they are measured."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_FLUSHED_BYTES = 256 * 1024**2
"""More than the second-level cache of any card."""


@dataclass(frozen=True)
class Row:
    """`target` is what `value` must reach, or stay under if `at_most`; a row without a value says why."""

    name: str
    value: float | None
    unit: str
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def ok(self) -> bool:
        if self.value is None:
            return False
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


class Bench:
    """One section. In smoke mode everything is tiny and on CPU."""

    def __init__(self, section: str) -> None:
        self.smoke = "--smoke" in sys.argv
        self.device = torch.device("cpu" if self.smoke else "cuda")
        self.dtype = torch.float32 if self.smoke else torch.bfloat16
        self.out = Path(os.environ.get("OUT", "benchmarks/results")) / "gpu"
        self.section = section
        self.rows: list[Row] = []
        self._flush = None if self.smoke else torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=self.device)
        torch.manual_seed(0)

    def add(self, row: Row) -> None:
        """Shows it and writes all rows so far."""
        self.rows.append(row)
        shown = "not measured" if row.value is None else f"{row.value:.4g} {row.unit}"
        print(f"{self.section}: {row.name}: {shown} {row.note}", flush=True)
        self.out.mkdir(parents=True, exist_ok=True)
        content = {"rows": [{**asdict(each), "ok": each.ok} for each in self.rows], "machine": machine(self.device)}
        path = self.out / f"{self.section}.json"
        path.with_suffix(".new").write_text(json.dumps(content, indent=1) + "\n")
        path.with_suffix(".new").replace(path)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What goes wrong in it is a row, and the section goes on: a card may be there only once. Not in smoke mode."""
        try:
            yield
        except Exception as error:
            if self.smoke:
                raise
            traceback.print_exc()
            words = str(error).strip().splitlines() or [""]
            self.add(Row(name, None, "", note=f"{type(error).__name__}: {words[0][:120]}"))
        if not self.smoke:
            gc.collect()
            torch.cuda.empty_cache()

    def seconds(self, run: Callable[[], object], times: int = 20) -> float:
        """Median on the device, whose cache is emptied before each."""
        if self._flush is None:
            return self.seconds_in_a_row(run, 1)
        for _ in range(3):
            run()
        taken = []
        for _ in range(times):
            self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            run()
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        return float(statistics.median(taken))

    def seconds_in_a_row(self, run: Callable[[], object], times: int = 20) -> float:
        """Mean of runs that follow one another as steps do: the host prepares one while the device has the one before.

        Where the host takes longer than the device, it is the host's time.
        """
        if self.smoke:
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(times):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end) / 1e3 / times)

    def ceiling(self, name: str) -> float | None:
        """What the section `ceilings` measured."""
        path = self.out / "ceilings.json"
        if not path.exists():
            return None
        rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
        return next((row["value"] for row in rows if row["name"] == name), None)

    def share(self, name: str, value: float, ceiling: str, target: float | None, note: str = "") -> None:
        """A rate as a share of a ceiling that was measured here."""
        most = self.ceiling(ceiling)
        if most is None:
            self.add(Row(name, None, "of ceiling", target, note=f"the ceiling {ceiling!r} was not measured"))
        else:
            self.add(Row(name, value / most, "of ceiling", target, note=note))


def machine(device: torch.device) -> str:
    """Card and versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (smoke)"
    return f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}"
