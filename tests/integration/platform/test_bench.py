"""The load generator against a live gateway."""

import json
from pathlib import Path

from tests.integration.platform.running_platform import Platform


def test_load_on_a_live_gateway(platform: Platform, tmp_path: Path) -> None:
    report, figures = tmp_path / "report.html", tmp_path / "figures.json"
    words = (
        "bench",
        platform.http,
        "--api-key",
        platform.api_key,
        "--rate",
        "20",
        "--duration",
        "2",
        "--output-tokens",
        "4",
    )
    done = platform.headrace(*words, "--html", str(report), "--json", str(figures), "--slo-ttft-ms", "5000")
    assert done.returncode == 0, done.stderr + done.stdout
    summary = json.loads(figures.read_text())["summary"]
    assert summary["num_completed"] == summary["num_requests"] > 10
    assert summary["ttft_s"]["p50"] > 0 and summary["attainment"] == 1
    assert "TTFT" in done.stdout and "<svg" in report.read_text()
    assert platform.api_key not in report.read_text() + figures.read_text()


def test_what_the_server_does_not_have_is_said(platform: Platform) -> None:
    done = platform.headrace("bench", platform.http, "--api-key", platform.api_key, "--model", "nothing")
    assert (done.returncode, "the server has no model 'nothing'" in done.stderr) == (2, True)
    assert platform.headrace("bench", "http://127.0.0.1:1").returncode == 2


def test_top_shows_what_works(platform: Platform) -> None:
    with platform.client() as client:
        list(client.generate("scripted", [{"role": "user", "content": json.dumps(["a", "b"])}]))
    shown = json.loads(platform.headrace("top", "--json", "--every", "0.3").stdout)
    assert (shown["num_ready"], shown["num_replicas"], shown["num_unbalanced"]) == (1, 1, 0)
    assert [line["name"] for line in shown["engines"]] == ["scripted-0"]
    assert "dev" in [line["name"] for line in shown["tenants"]]
    text = platform.headrace("top", "--once", "--every", "0.3").stdout
    assert "scripted-0" in text and "books balance" in text
