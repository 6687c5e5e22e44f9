"""Dashboards and alerts speak of metrics that exist, and a real Prometheus takes and evaluates them."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import ROOT
from tests.integration.platform.running_platform import Platform, running_platform
from tools import dashboards, metrics_doc

ALERTS = ROOT / "deploy/prometheus/alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
QUERIES = [line[0] for _, row in dashboards.ROWS for panel in row for line in panel.lines]
_WORDS = {"sum", "by", "rate", "increase", "max", "min", "avg", "and", "or", "on", "group_right", "le", "up"}
_WORDS |= {"histogram_quantile", "interval"}
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")


def names_in(query: str) -> set[str]:
    """Names of metrics: words outside of braces, brackets and label lists."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|group_right) *\([^)]*\)", " ", query)
    return set(re.findall(r"[a-z_]{2,}", bare)) - _WORDS


def known() -> set[str]:
    found = {"up"}
    for rows in metrics_doc.metrics().values():
        for one in rows:
            suffixes = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
            found |= {one.name + suffix for suffix in suffixes}
    return found


def test_the_dashboard_is_what_its_code_writes() -> None:
    assert dashboards.PATH.read_text() == dashboards.render(), "run python -m tools.dashboards"


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in RULES)])
def test_every_query_asks_for_what_exists(query: str) -> None:
    names = names_in(query)
    assert names - known() == set()
    assert names or query == "up == 0"


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboards.dashboard()["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells and place["x"] + place["w"] <= 24
        cells |= own


def test_every_alert_says_what_is_wrong_and_where_to_look() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "look_at"} == set(rule["annotations"])


@promtool
def test_the_alerts_fire_for_what_they_are_meant_for() -> None:
    folder = ALERTS.parent
    subprocess.run(["promtool", "check", "rules", "alerts.yml"], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)", (folder / "alerts_test.yml").read_text()))
    assert tested == {rule["alert"] for rule in RULES}


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[tuple[Platform, str]]:
    """A live platform, and a real Prometheus that scrapes it under our rules."""
    with running_platform(tmp_path / "platform") as platform:
        rows = [row for row in platform.status()["services"] if row.get("http")]
        scrapes = [
            {
                "job_name": row["name"].partition("/")[0],
                "authorization": {"credentials_file": str(platform.state_dir / "service-token")},
                "static_configs": [{"targets": [row["http"]]}],
            }
            for row in rows
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": scrapes,
        }
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{_free_port()}"
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                yield platform, f"http://{address}"
            finally:
                process.terminate()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus is here")
def test_a_real_prometheus_scrapes_and_evaluates(prometheus: tuple[Platform, str]) -> None:
    platform, url = prometheus
    with platform.client() as client:
        list(client.generate("scripted", [{"role": "user", "content": json.dumps(["a", "b"])}]))
    jobs = {"gateway", "policy", "router", "controlplane", "worker"}

    def up() -> set[str]:
        return {row["metric"]["job"] for row in query(url, "up == 1")}

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (up() >= jobs and query(url, "responses_total > 0")):
        time.sleep(0.5)
    assert up() >= jobs
    assert query(url, 'sum(responses_total{outcome="completed"}) >= 1')
    for text in QUERIES:
        query(url, text.replace("$__rate_interval", "1m"))
    state = json.loads(fetch(f"{url}/api/v1/rules"))
    rules = [rule for group in state["data"]["groups"] for rule in group["rules"]]
    assert len(rules) == len(RULES) and all(rule["health"] in ("ok", "unknown") for rule in rules)
    assert not query(url, "audit_unbalanced > 0")


def query(url: str, text: str) -> list[dict[str, Any]]:
    try:
        answer = json.loads(fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': text})}"))
    except OSError:
        return []
    assert answer["status"] == "success", answer
    rows: list[dict[str, Any]] = answer["data"]["result"]
    return rows


def fetch(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as answer:
        return bytes(answer.read())


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
