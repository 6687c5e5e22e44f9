"""The same server, the same load, two load generators: what they say of it must agree within 5 %.

Needs guidellm in its own environment (`make peers`). The server is guidellm's mock, which waits for fixed times.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.test_dashboards import _free_port as free_port

GUIDELLM = Path(__file__).parents[2] / "benchmarks/peers/guidellm/bin/guidellm"
RATE, SECONDS, ROUNDS = 4, 12, 3
ENVIRONMENT = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GUIDELLM.exists(), reason="guidellm is not installed: make peers"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    port = free_port()
    words = ["mock-server", "--port", str(port), "--ttft-ms", "200", "--itl-ms", "40", "--output-tokens", "24"]
    with subprocess.Popen([GUIDELLM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + 60
        try:
            while True:
                try:
                    opener.open(f"{url}/v1/models", timeout=2).read()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "the mock server does not answer"
                    time.sleep(0.5)
            yield url
        finally:
            process.terminate()


def ours(url: str, folder: Path) -> dict[str, float]:
    file = folder / "ours.json"
    load = ["--rate", str(RATE), "--duration", str(SECONDS), "--cv", "0", "--output-tokens", "24"]
    command = [sys.executable, "-m", "headrace_bench", url, *load, "--json", str(file)]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    summary = json.loads(file.read_text())["summary"]
    return {"ttft": summary["ttft_s"]["p50"], "tpot": summary["tpot_s"]["p50"], "e2e": summary["latency_s"]["p50"]}


def theirs(url: str, folder: Path) -> dict[str, float]:
    prompts, file = folder / "prompts.jsonl", folder / "theirs.json"
    prompts.write_text("\n".join(json.dumps({"prompt": "water " * 50 + str(number)}) for number in range(400)))
    command = [
        *(str(GUIDELLM), "run", "--backend", f"kind=openai_http,target={url}"),
        *("--profile", f"kind=constant,rate={RATE}"),
        *("--constraint", f"kind=max_duration,seconds={SECONDS}", "--data", f"kind=json_file,path={prompts}"),
        *("--output", f"kind=json,path={file}", "--disable-console"),
    ]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT, timeout=240)
    metrics: dict[str, Any] = json.loads(file.read_text())["benchmarks"][0]["metrics"]
    names = {"ttft": "time_to_first_token_ms", "tpot": "inter_token_latency_ms", "e2e": "request_latency"}
    found = {key: float(metrics[name]["successful"]["median"]) for key, name in names.items()}
    return {key: value if key == "e2e" else value / 1000 for key, value in found.items()}


def test_both_say_the_same_of_the_same_server(server: str, tmp_path: Path) -> None:
    """In turns, so that what else happens on the machine falls on both."""
    rounds = [(ours(server, tmp_path), theirs(server, tmp_path)) for _ in range(ROUNDS)]
    for key in ("ttft", "tpot", "e2e"):
        mine, other = (statistics.median(each[side][key] for each in rounds) for side in (0, 1))
        assert mine == pytest.approx(other, rel=0.05), f"{key}: {mine:.4f} and {other:.4f} s in {rounds}"
