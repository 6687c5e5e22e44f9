"""compose.yaml without an engine: services that would start, and nothing exposed or privileged by accident."""

import datetime
import tomllib
from pathlib import Path

import pytest
import yaml

from headrace_cli.platform.credentials_dir import CredentialsDir
from headrace_controlplane.fleet.file import parse
from tests.deploy.manifests import ROOT, SERVICES, compose, started_with

FILE = compose()
OURS = (*SERVICES, "worker-gpu")
FLEETS = {"worker": "cpu", "worker-gpu": "gpu"}


@pytest.mark.parametrize("name", OURS)
def test_a_service_starts_with_the_settings_that_it_is_given(name: str, tmp_path: Path) -> None:
    service = name.removesuffix("-gpu")
    config = started_with(service, FILE["services"][name]["command"], tmp_path, FILE["services"][name]["environment"])
    assert config.tls_key == Path("/run/secrets/key.pem")
    assert config.drain_s < float(FILE["services"][name]["stop_grace_period"].removesuffix("s"))
    assert config.otlp_endpoint is None


@pytest.mark.parametrize("name", FLEETS)
def test_a_worker_is_what_the_fleet_file_of_its_profile_says(name: str) -> None:
    fleet = parse((ROOT / f"deploy/compose/fleet-{FLEETS[name]}.yaml").read_text())
    flags = dict(word.removeprefix("--").split("=", 1) for word in FILE["services"][name]["command"])
    pool = fleet.pools[flags["pool"]]
    model = fleet.models[pool.model]
    assert pool.launcher == "external"
    assert (flags["model"], flags["source"], flags["revision"]) == (pool.model, model.source, model.revision)
    assert (flags["device"], flags["precision"]) == (pool.device, pool.precision)


def test_only_the_gateway_and_this_hosts_grafana_are_published() -> None:
    published = {name: service["ports"] for name, service in FILE["services"].items() if "ports" in service}
    assert set(published) == {"gateway", "grafana"}
    assert all(port.startswith("127.0.0.1:") for port in published["grafana"])
    internal = {name for name, network in FILE["networks"].items() if network and network.get("internal")}
    assert {"mesh", "store", "watch"} == internal


@pytest.mark.parametrize("name", FILE["services"])
def test_a_container_can_do_little(name: str) -> None:
    service = FILE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


def test_every_secret_is_a_file_that_init_makes(tmp_path: Path) -> None:
    list(CredentialsDir(tmp_path, for_containers=True).renew(["localhost"], 1, datetime.datetime.now(datetime.UTC)))
    files = {Path(secret["file"]).name for secret in FILE["secrets"].values()}
    assert files <= {path.name for path in tmp_path.iterdir()}
    used = {
        secret["source"] if isinstance(secret, dict) else secret
        for service in FILE["services"].values()
        for secret in service.get("secrets", [])
    }
    assert used == set(FILE["secrets"])
    assert "ca-key.pem" not in files


def test_no_service_sees_the_key_of_another() -> None:
    for name in OURS:
        keys = {s["source"] for s in FILE["services"][name]["secrets"] if isinstance(s, dict) and "-key" in s["source"]}
        assert keys - {"public-key"} == {f"{name.removesuffix('-gpu')}-key"}
        assert ("public-key" in keys) == (name == "gateway")


def test_every_mounted_configuration_exists() -> None:
    for config in FILE["configs"].values():
        assert (ROOT / config["file"]).is_file()
    assert tomllib.loads((ROOT / "deploy/compose/remote.toml").read_text())["controlplane"] == "controlplane:7000"


def test_the_profile_of_a_host_without_gpu_is_the_default() -> None:
    assert "COMPOSE_PROFILES=cpu\n" in (ROOT / ".env").read_text()
    assert FILE["services"]["worker"]["profiles"] == ["cpu"]


def test_with_several_hosts_whatever_meets_them_is_on_a_network_that_leaves_the_host() -> None:
    over = yaml.safe_load((ROOT / "deploy/compose/several-hosts.yaml").read_text().replace("${", "").replace("}", ""))
    networks = FILE["networks"] | over["networks"]
    for name in ("controlplane", "router", "gateway"):
        joined = [*FILE["services"][name]["networks"], *over["services"].get(name, {}).get("networks", [])]
        # A later `internal: false` is lost when Compose merges files, so one network must never have been internal.
        assert any(not (networks[network] or {}).get("internal") for network in joined), name
        assert all((over["networks"].get(network) or {}).get("internal") is None for network in joined)
