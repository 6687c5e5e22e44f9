"""What every benchmark leaves behind: a table on the terminal and benchmarks/results/NAME.json.

A figure is a ratio, or a count, taken in one run against a named baseline or a limit. One that was not measured is not
ok and says why.
"""

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """`sense` says on which side of the target a measurement is good; without a target it is shown only."""

    figure: str
    measured: float | None
    target: float | None = None
    sense: Literal["at most", "at least", "exactly"] = "at most"
    baseline: str | None = None
    reason: str | None = None
    commit: str | None = None
    """What was measured, where that is not the file's own."""

    @property
    def ok(self) -> bool:
        if self.measured is None:
            return False
        if self.target is None:
            return True
        if self.sense == "exactly":
            return self.measured == self.target
        return self.measured <= self.target if self.sense == "at most" else self.measured >= self.target


def write(name: str, figures: list[Figure], note: str = "") -> None:
    """Prints the table and writes the file."""
    for one in figures:
        target = "" if one.target is None else f"{one.sense} {one.target:g}"
        measured = "not measured" if one.measured is None else f"{one.measured:.4g}"
        why = one.reason or one.baseline or ""
        print(f"{'ok ' if one.ok else 'NO '} {one.figure:<72} {measured:>12}  {target:<14} {why}")
    rows = [{**asdict(one), "ok": one.ok} for one in figures]
    content = {"figures": rows, "machine": machine(note), "commit": commit()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def renewed(name: str, figures: list[Figure]) -> list[Figure]:
    """Those of the file, with the ones that were just measured in the places of their like; new ones come last."""
    path = RESULTS / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"figures": [], "commit": ""}
    fresh = {one.figure: one for one in figures}
    rows = [{"commit": None} | {key: value for key, value in row.items() if key != "ok"} for row in content["figures"]]
    before = [Figure(**row | {"commit": row["commit"] or content["commit"]}) for row in rows]
    return [fresh.pop(one.figure, one) for one in before] + list(fresh.values())


def machine(note: str = "") -> str:
    """Processor, cores, Python."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else model
    text = f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return f"{text}; {note}" if note else text


def commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"
