"""benchmarks/gpu/run.sh without a GPU: it says so, and its sections run in tiny shapes with torch and triton alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import table
from benchmarks.gpu.bench import Bench, Row

ROOT = Path(__file__).parents[2]
BLOCKED = """
import pathlib, sys
pathlib.Path(__file__).with_name("blocked").touch()
for name in "grpc google redis opentelemetry xgrammar gguf huggingface_hub tokenizers safetensors headrace_kit".split():
    sys.modules[name] = None
"""


def run(out: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(out / "out"), "PYTHONPATH": path}
    command = [str(ROOT / "benchmarks/gpu/run.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=170, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 3 and "no CUDA device" in done.stderr
    assert not list(tmp_path.iterdir())


def test_sections_run_with_torch_and_triton_alone(tmp_path: Path) -> None:
    """The others share what these use; each is on disk by itself, and one that is missing is a row that is not ok."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    done = run(tmp_path, "--smoke", "ceilings", "engine", "kernels", path=str(tmp_path))
    assert done.returncode == 0 and "ended with" not in done.stderr, done.stdout + done.stderr
    assert (tmp_path / "blocked").exists(), "nothing was blocked"
    rows = json.loads((tmp_path / "out/gpu/engine.json").read_text())["rows"]
    assert {row["unit"] for row in rows} >= {"tokens/s", "x"} and all(row["value"] for row in rows)
    figures = json.loads((tmp_path / "out/gpu.json").read_text())["figures"]
    assert [row["reason"] for row in figures if row["figure"] == "decode"] == ["the section wrote nothing"]


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path, "--smoke", "nothing").returncode == 2


def test_a_part_that_fails_is_a_row_and_the_next_one_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["decode", "--smoke"])
    bench = Bench("decode")
    bench.smoke = False
    with bench.part("first"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")
    with bench.part("second"):
        bench.add(Row("second", 1.0, "x"))
    table.main()
    rows = json.loads((tmp_path / "gpu/decode.json").read_text())["rows"]
    assert [(row["name"], row["value"], row["ok"]) for row in rows] == [("first", None, False), ("second", 1.0, True)]
    assert rows[0]["note"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    figures = {row["figure"]: row["ok"] for row in json.loads((tmp_path / "gpu.json").read_text())["figures"]}
    assert figures["decode: second"] and not figures["decode: first"] and not figures["engine"]


def test_all_sections_fit_into_eight_minutes_and_are_in_the_table() -> None:
    script = (ROOT / "benchmarks/gpu/run.sh").read_text()
    caps = {name: int(seconds) for name, seconds in re.findall(r"\[([a-z]+)\]=([0-9]+)", script)}
    assert tuple(re.search(r"sections=\$\{\*:-([a-z ]+)\}", script)[1].split()) == table.SECTIONS  # type: ignore[index]
    assert set(caps) == set(table.SECTIONS) and sum(caps.values()) <= 480
