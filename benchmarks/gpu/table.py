"""All sections in one table, and benchmarks/results/gpu.json. A section without a file was not measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECTIONS = ("ceilings", "kernels", "products", "attention", "decode", "prefill", "engine", "peer")
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    out = Path(os.environ.get("OUT", ROOT / "benchmarks/results/gpu"))
    figures: list[dict[str, Any]] = []
    machine = "unknown"
    for section in SECTIONS:
        path = out / f"{section}.json"
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
    written = out / "smoke.json" if "--smoke" in sys.argv else out.parent / "gpu.json"
    written.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
