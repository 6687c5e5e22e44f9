"""The kustomize base: valid objects, services that would start, pods that can do little."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headrace_controlplane.fleet.file import parse
from tests.deploy.manifests import KUBERNETES, ROOT, SERVICES, kubernetes, pods, started_with

OBJECTS = kubernetes()
VERSION = "1.37"


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_what_kubernetes_takes(name: str) -> None:
    kubernetes_validate.validate(OBJECTS[name], VERSION, strict=True)


def test_an_unknown_field_would_be_found() -> None:
    wrong = OBJECTS["Service/gateway"] | {"spec": {"portz": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_with_the_settings_that_it_is_given(service: str, tmp_path: Path) -> None:
    container = pods()[service]["containers"][0]
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    config = started_with(service, container["args"], tmp_path, environ)
    assert config.grpc_listen == "0.0.0.0:7000" and config.tls_ca == Path("/run/secrets/ca.pem")
    assert config.drain_s + 5 < pods()[service]["terminationGracePeriodSeconds"], "the pod outlives its drain"


@pytest.mark.parametrize("workload", pods())
def test_a_pod_can_do_little_and_sees_no_links_to_services(workload: str) -> None:
    pod = pods()[workload]
    assert pod["enableServiceLinks"] is False, "HEADRACE_* names would be refused as unknown settings"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert "readinessProbe" in container and "livenessProbe" in container


@pytest.mark.parametrize("workload", pods())
def test_every_mount_has_its_volume(workload: str) -> None:
    owner: Any = OBJECTS.get(f"StatefulSet/{workload}") or OBJECTS[f"Deployment/{workload}"]
    volumes = {volume["name"] for volume in pods()[workload]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
    mounts = {mount["name"] for container in pods()[workload]["containers"] for mount in container["volumeMounts"]}
    assert mounts == volumes


@pytest.mark.parametrize("workload", pods())
def test_every_pod_has_a_service_and_a_policy_of_who_may_call_it(workload: str) -> None:
    assert f"NetworkPolicy/{workload}" in OBJECTS
    service = OBJECTS[f"Service/{workload}"]["spec"]
    ports = {port["name"] for container in pods()[workload]["containers"] for port in container["ports"]}
    assert service["selector"] == {"app.kubernetes.io/name": workload}
    assert {port["targetPort"] for port in service["ports"]} <= ports


def test_only_the_gateway_takes_calls_from_everywhere() -> None:
    policies = {key.partition("/")[2]: item["spec"] for key, item in OBJECTS.items() if item["kind"] == "NetworkPolicy"}
    assert policies["nothing-unless-named"]["podSelector"] == {}
    open_to_all = {name for name, spec in policies.items() for rule in spec.get("ingress", []) if "from" not in rule}
    assert open_to_all == {"gateway"}


def test_the_files_of_the_base_are_those_of_compose_and_valid() -> None:
    assert (KUBERNETES / "service.toml").read_text() == (ROOT / "deploy/compose/service.toml").read_text()
    fleet = parse((KUBERNETES / "fleet.yaml").read_text())
    assert {pool.launcher for pool in fleet.pools.values()} == {"external"}
    flags = dict(word.removeprefix("--").split("=", 1) for word in pods()["worker"]["containers"][0]["args"])
    pool = fleet.pools[flags["pool"]]
    model = fleet.models[pool.model]
    assert (flags["model"], flags["source"], flags["revision"]) == (pool.model, model.source, model.revision)
    assert (flags["device"], flags["precision"]) == (pool.device, pool.precision)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here to render the base")
def test_kubectl_renders_it() -> None:
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=True)
    rendered = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert len(rendered) == len(OBJECTS) + 1, "and the configuration map"
