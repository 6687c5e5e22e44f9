"""`headrace simulate`: a table, JSON and a page; a sentence for what cannot be used."""

import json
from pathlib import Path

import pytest
import yaml

from headrace_sim.__main__ import main

FLEET = {
    "models": {"m": {"source": "hf:a/b@main"}},
    "pools": {"p": {"model": "m", "device": "cuda", "card": "h100-80gib", "precision": "bfloat16"}},
    "simulation": {"models": {"m": {"shape": "llama-3.1-8b"}}},
}
LOAD = {"phases": [{"for_s": 5, "rps": 4}], "mix": [{"model": "m", "prompt": 50, "output": 5, "max_output": 9}]}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    (tmp_path / "load.yaml").write_text(yaml.safe_dump(LOAD))
    return [str(tmp_path / "load.yaml"), "--fleet", str(tmp_path / "fleet.yaml")]


def test_a_run_is_a_table_and_a_page(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--html", str(tmp_path / "run.html")]) == 0
    assert "m / standard" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "run.html").read_text()


def test_json_says_it_all_and_exact_agrees(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for more in ([], ["--exact"]):
        assert main([*words, "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["requests"] == found[1]["requests"]
    assert found[0]["attainment"] == 1.0
    assert found[0]["cost"]["gpu_hours"] > 0


def test_a_part_of_a_workload(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for more in ([], ["--for-s", "2"], ["--thin", "0.5"]):
        assert main([*words, "--json", *more]) == 0
        counts.append(json.loads(capsys.readouterr().out)["requests"]["arrived"])
    assert counts[1] < counts[0] and counts[2] < counts[0]


@pytest.mark.parametrize(("place", "word"), [(0, "no-such-load"), (2, "no-such-fleet.yaml")])
def test_what_cannot_be_used_is_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str], place: int, word: str
) -> None:
    words[place] = word
    assert main(words) == 2
    assert word in capsys.readouterr().err
