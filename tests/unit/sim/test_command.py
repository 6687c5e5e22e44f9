"""`headrace simulate`: a table, JSON and a page; a sentence for what cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_sim.__main__ import main
from headrace_sim.simulation import Simulation
from headrace_worker.perf.command_end import ended

FLEET: dict[str, Any] = {
    "models": {"m": {"source": "hf:a/b@main"}},
    "pools": {"p": {"model": "m", "device": "cuda", "card": "h100-80gib", "precision": "bfloat16"}},
    "simulation": {"models": {"m": {"shape": "llama-3.1-8b"}}},
}
LOAD: dict[str, Any] = {
    "phases": [{"for_s": 5, "rps": 4}],
    "mix": [{"model": "m", "prompt": 50, "output": 5, "max_output": 9}],
}


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


def test_json_explains_every_change_of_the_scaler(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    own = {"capacity": 60, "down_after_s": 5, "forecast": 0}
    pool = {**FLEET["pools"]["p"], "min": 1, "max": 9, "start_up_s": 1, "scaling": own}
    Path(words[2]).write_text(yaml.safe_dump({**FLEET, "pools": {"p": pool}}))
    phases = [{"for_s": 5, "rps": 8}, {"for_s": 60, "rps": 0.5}]
    Path(words[0]).write_text(yaml.safe_dump({**LOAD, "phases": phases}))
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    wanted = [each["desired"] for each in report["decisions"]["p"]]
    assert max(wanted) == max(report["timeline"]["wanted"]) > 4 and wanted[-1] < 4
    assert {each["why"] for each in report["decisions"]["p"]} <= {"load", "queue", "lower"}


def test_a_part_of_a_workload(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for more in ([], ["--for-s", "2"], ["--thin", "0.5"]):
        assert main([*words, "--json", *more]) == 0
        counts.append(json.loads(capsys.readouterr().out)["requests"]["arrived"])
    assert counts[1] < counts[0] and counts[2] < counts[0]


@pytest.mark.parametrize(
    "more",
    [["--for-s", "nan"], ["--for-s", "0"], ["--thin", "2"], ["--thin", "0"], ["--start-s", "-1"], ["--max-output", "0"],
     ["--html", "/no/such/folder/run.html"]],
)  # fmt: skip
def test_a_flag_that_makes_no_sense_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*words, *more])
    assert caught.value.code == 2
    assert more[0] in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--model", "m"], ["--max-output", "5"], ["--start-s", "5"]])
def test_what_only_a_trace_has_is_not_ignored(
    words: list[str], capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main([*words, *more]) == 2
    assert "trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words_of_it"),
    [
        ({"phases": [{"for_s": 5, "rps": 0}]}, "no request arrives"),
        ({"mix": [{**LOAD["mix"][0], "tenants": ["nobody"]}]}, "a tenant 'nobody'; the fleet has dev"),
    ],
)
def test_a_load_that_the_fleet_cannot_have_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str], change: dict[str, Any], words_of_it: str
) -> None:
    Path(words[0]).write_text(yaml.safe_dump({**LOAD, **change}))
    assert main(words) == 2
    assert words_of_it in capsys.readouterr().err


def test_a_pool_that_nobody_asks_has_no_capacity_to_search(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = {
        **FLEET,
        "models": {**FLEET["models"], "idle": {"source": "hf:a/c@main"}},
        "pools": {**FLEET["pools"], "q": {**FLEET["pools"]["p"], "model": "idle", "max": 2}},
        "simulation": {"models": {"m": {"shape": "llama-3.1-8b"}, "idle": {"shape": "llama-3.1-8b"}},
                       "pools": {"q": {"scaling": {}}}},
    }  # fmt: skip
    Path(words[2]).write_text(yaml.safe_dump(fleet))
    assert main(words) == 2
    assert "simulation.pools.q.scaling.capacity" in capsys.readouterr().err


def test_a_model_of_ones_own_is_simulated_from_its_config(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 40, "num_hidden_layers": 64,
              "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 32768,
              "model_type": "qwen2"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    fleet = {**FLEET, "simulation": {"models": {"m": {"shape": str(tmp_path / "config.json")}},
                                     "pools": {"p": {"weights": "fp8"}}}}  # fmt: skip
    Path(words[2]).write_text(yaml.safe_dump(fleet))
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slo"][0]["inter_token_s"]["p50"] > 0.01, "32 B parameters"


@pytest.mark.parametrize(("place", "word"), [(0, "no-such-load"), (2, "no-such-fleet.yaml")])
def test_what_cannot_be_used_is_one_sentence(
    words: list[str], capsys: pytest.CaptureFixture[str], place: int, word: str
) -> None:
    words[place] = word
    assert main(words) == 2
    assert word in capsys.readouterr().err


def test_a_run_that_is_interrupted_leaves_nothing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the page's place was only tried."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "run", interrupted)
    assert ended(lambda: main([*words, "--html", str(tmp_path / "run.html")])) == 130
    assert not (tmp_path / "run.html").exists()
