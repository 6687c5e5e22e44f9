"""The command as its caller runs it: flags, JSON, table, and one clear sentence for each flag that cannot be used."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace_worker.perf.plan_command import main

WORKER = Path(__file__).parents[4] / "services" / "worker"
BASE = ["--model", "llama-3.1-70b", "--runtime-reserve-gib", "4", "--context", "8192"]


def answer(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main([*flags, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize(
    ("precision", "weight_bytes", "devices", "reservations"),
    [("fp16", 140e9, 2, 8), ("fp8", 70e9, 1, 4), ("int4", 35e9, 1, 17)],
)
def test_reference_figures(
    capsys: pytest.CaptureFixture[str], precision: str, weight_bytes: float, devices: int, reservations: int
) -> None:
    report = answer(capsys, *BASE, "--precision", precision)
    assert report["weight_bytes"] == weight_bytes
    assert report["devices"] == devices
    assert report["full_reservations"] == reservations
    assert report["kv_bytes_per_token"] == 327_680
    assert report["kv_bytes_per_sequence"] == 2_684_354_560
    assert report["predictions"]["prefill"][0]["time_s"] > 0


def test_every_flag_is_honoured(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "llama-3.1-8b", "--params", "9000000000", "--precision", "fp8", "--kv-precision", "fp8",
             "--gpu", "l40s-48gib", "--hbm-gib", "45", "--runtime-reserve-gib", "2.5", "--tp", "2", "--pp", "2",
             "--context", "4096"]  # fmt: skip
    report = answer(capsys, *flags)
    assert report["params"] == report["weight_bytes"] == 9_000_000_000
    assert report["hbm_bytes_per_device"] == 45 * 2**30
    assert report["runtime_reserve_bytes_per_device"] == 2.5 * 2**30
    assert (report["tp"], report["pp"], report["devices"]) == (2, 2, 4)
    assert report["kv_bytes_per_sequence"] == 4096 * 65_536
    assert report["context"] == 4096


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--precision", "fp8"]) == 0
    table = capsys.readouterr().out
    for text in ("327,680 bytes", "2.500 GiB", "70,000,000,000 bytes", "prefill 4,096", "hbm_capacity at"):
        assert text in table
    assert "full reservations                    4" in table


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--model", "nothing"], "--model"),
        (["--params", "0"], "--params"),
        (["--precision", "fp7"], "--precision"),
        (["--kv-precision", "int4"], "--kv-precision"),
        (["--gpu", "abacus"], "--gpu"),
        (["--hbm-gib", "0"], "--hbm-gib"),
        (["--hbm-gib", "nan"], "--hbm-gib"),
        (["--hbm-gib", "inf"], "--hbm-gib"),
        (["--hbm-gib", "1e300"], "--hbm-gib"),
        (["--runtime-reserve-gib", "-1"], "--runtime-reserve-gib"),
        (["--runtime-reserve-gib", "inf"], "--runtime-reserve-gib"),
        (["--runtime-reserve-gib", "1e300"], "--runtime-reserve-gib"),
        (["--rps", "1e300"], "--rps"),
        (["--prompt-tokens", "100000", "--output-tokens", "40000"], "--prompt-tokens"),
        (["--html", "/no/such/folder/plan.html"], "--html"),
        (["--html", ""], "--html"),
        (["--tp", "3"], "--tp"),
        (["--tp", "0"], "--tp"),
        (["--pp", "81"], "--pp"),
        (["--context", "0"], "--context"),
        (["--context", "131073"], "--context"),
    ],
)
def test_an_unusable_value_names_its_flag(capsys: pytest.CaptureFixture[str], flags: list[str], named: str) -> None:
    assert main([*BASE, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"headrace plan: {named}: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("flags", [["--tp", "two"], ["--context", "1.5"], ["--hbm-gib", "big"], ["--unknown", "1"]])
def test_a_mistyped_value_is_a_usage_error(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*BASE, *flags])
    assert caught.value.code == 2
    assert flags[0] in capsys.readouterr().err


def test_a_folder_with_a_config_is_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
              "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
              "max_position_embeddings": 40960, "tie_word_embeddings": True}  # fmt: skip
    folder = tmp_path / "my-qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mine = answer(capsys, "--model", str(folder), "--gpu", "rtx4090-24gib")
    built_in = answer(capsys, "--model", "qwen3-0.6b", "--gpu", "rtx4090-24gib")
    assert mine.pop("model") == "my-qwen"
    del built_in["model"]
    assert mine == built_in


def test_a_quantized_checkpoint_is_not_planned_at_full_width_in_silence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
              "num_hidden_layers": 28, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
              "quantization_config": {"quant_method": "awq", "bits": 4}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (note,) = answer(capsys, "--model", str(tmp_path), "--context", "2048")["notes"]
    assert "quantized (awq, 4 bits)" in note and "bf16" in note
    notes = answer(capsys, "--model", str(tmp_path), "--context", "2048", "--precision", "int4-g128")["notes"]
    assert not any("quantized" in each for each in notes)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"{}", b'{"hidden_size": "big"}'])
def test_a_broken_config_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert main(["--model", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"headrace plan: --model: {path}")


def test_it_runs_alone_without_torch_or_any_other_distribution() -> None:
    """What `headrace plan` spawns: a bare interpreter with only the worker's folder on its path."""
    script = (
        "import sys; from headrace_worker.perf.plan_command import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'grpc', 'headrace_kit', 'headrace', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    command = [sys.executable, "-c", script, *BASE, "--precision", "fp8", "--json"]
    done = subprocess.run(command, env={"PYTHONPATH": str(WORKER)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["full_reservations"] == 4


def test_the_module_is_a_command() -> None:
    command = [sys.executable, "-m", "headrace_worker.perf", "plan", *BASE, "--precision", "int4", "--json"]
    done = subprocess.run(command, env={"PYTHONPATH": str(WORKER)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["full_reservations"] == 17
    wrong = subprocess.run(command[:3], env={"PYTHONPATH": str(WORKER)}, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "usage" in wrong.stderr


def test_who_stops_reading_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "headrace_worker.perf", "plan", *BASE, "--precision", "int4", "--json"]
    process = subprocess.Popen(
        command, env={"PYTHONPATH": str(WORKER)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 0


def test_this_host_can_be_planned_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "--model", "smollm2-135m-instruct", "--gpu", "cpu", "--hbm-gib", "8", "--context", "2048")
    assert report["precision"] == "fp32"
    assert report["weight_bytes"] == 134_515_008 * 4
    assert report["full_reservations"] > 0
    assert report["predictions"]["decode"][0]["tokens_per_s"] > 0
