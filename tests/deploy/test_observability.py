"""What watches the platform finds it: every service is scraped over TLS, and the collector hands traces on."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_kit.channels import identity
from tests.deploy.manifests import ROOT, SERVICES, compose

PROMETHEUS = ROOT / "deploy/prometheus/prometheus.yml"
JOBS: dict[str, Any] = {job["job_name"]: job for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_scraped_as_itself(service: str) -> None:
    job = JOBS[service]
    assert job["scheme"] == "https" and job["tls_config"]["server_name"] == identity(service)
    assert job["authorization"]["credentials_file"] == "/run/secrets/service-token"
    (discovery,) = job["dns_sd_configs"]
    assert service in discovery["names"] and discovery["port"] == 7001
    assert set(discovery["names"]) <= set(compose()["services"])


def test_prometheus_has_the_files_that_it_names() -> None:
    service = compose()["services"]["prometheus"]
    mounted = {f"/run/secrets/{s['target'] if isinstance(s, dict) else s}" for s in service["secrets"]}
    named = {job["tls_config"]["ca_file"] for job in JOBS.values()}
    named |= {job["authorization"]["credentials_file"] for job in JOBS.values()}
    assert named == mounted


def test_spans_reach_the_trace_store() -> None:
    collector = yaml.safe_load((ROOT / "deploy/otel/collector.yaml").read_text())
    pipeline = collector["service"]["pipelines"]["traces"]
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(collector[kind])
    services = compose()["services"]
    host = collector["exporters"]["otlp"]["endpoint"].partition(":")[0]
    assert set(services[host]["networks"]) & set(services["otel-collector"]["networks"])
    assert "mesh" in services["otel-collector"]["networks"]


def test_grafana_knows_both_stores() -> None:
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/headrace.yaml").read_text())
    hosts = {Path(source["url"]).name.partition(":")[0] for source in sources["datasources"]}
    services = compose()["services"]
    assert hosts == {"prometheus", "traces"}
    assert all(set(services[host]["networks"]) & set(services["grafana"]["networks"]) for host in hosts)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here to read the file")
def test_promtool_takes_the_file() -> None:
    subprocess.run(["promtool", "check", "config", "--syntax-only", str(PROMETHEUS)], check=True, capture_output=True)
