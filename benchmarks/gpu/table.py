"""All sections so far in one table, and gpu.json in OUT. A section without a file was not measured."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

SECTIONS = ("ceilings", "decode", "engine", "prefill", "attention", "peer", "kernels")
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    out = Path(os.environ.get("OUT", ROOT / "benchmarks/results"))
    figures: list[dict[str, Any]] = []
    machine = "unknown"
    for section in SECTIONS:
        path = out / "gpu" / f"{section}.json"
        if not path.exists():
            reason = "the section wrote nothing"
            figures.append({"figure": section, "target": None, "measured": None, "baseline": None, "ok": False})
            figures[-1]["reason"] = reason
            print(f"NO  {section:<78} {reason}")
            continue
        content = json.loads(path.read_text())
        machine = content["machine"]
        for row in content["rows"]:
            shown = "not measured" if row["value"] is None else f"{row['value']:.4g} {row['unit']}"
            sense = "at most" if row["at_most"] else "at least"
            target = "" if row["target"] is None else f"{sense} {row['target']:g}"
            print(f"{'ok ' if row['ok'] else 'NO '} {row['name']:<78} {shown:<28} {target:<14} {row['note']}")
            figures.append({"figure": f"{section}: {row['name']}", "target": row["target"], "measured": row["value"]})
            figures[-1] |= {"unit": row["unit"], "baseline": None, "ok": row["ok"], "reason": row["note"]}
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    content = {"figures": figures, "machine": machine, "commit": asked.stdout.strip() or "unknown"}
    path = out / "gpu.json"
    path.with_suffix(".new").write_text(json.dumps(content, indent=2) + "\n")
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()
