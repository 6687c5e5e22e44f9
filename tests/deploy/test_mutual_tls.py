"""Every channel between our services is mutual TLS, and the gateway speaks TLS to clients."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import fleet_pb2
from headrace_cli.__main__ import main
from headrace_cli.client import AsyncClient
from headrace_kit.channels import identity
from tests.deploy.manifests import SERVICES
from tests.deploy.tls_platform import TlsPlatform, tls_platform

SCRIPT = [{"role": "user", "content": '["Hel", "lo"]'}]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPlatform]:
    with tls_platform(tmp_path_factory.mktemp("tls")) as platform:
        yield platform


def api_key(platform: TlsPlatform) -> str:
    return (platform.root / "bootstrap-key").read_text().strip()


def trust(platform: TlsPlatform) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=platform.certs / "ca.pem")


async def test_a_stream_runs_through_all_of_them(platform: TlsPlatform) -> None:
    with platform.client() as client:
        assert client.generate("scripted", SCRIPT, deadline_s=30, wait_for_ready=True).text() == "Hello"
    target = platform.target("gateway", "public_grpc")
    async with AsyncClient(target, api_key=platform.api_key, ca=platform.ca) as later:
        assert [model.id for model in await later.models()] == ["scripted"]


def test_http_clients_get_tls_too(platform: TlsPlatform) -> None:
    body = {"model": "scripted", "messages": SCRIPT}
    headers = {"authorization": f"Bearer {platform.api_key}"}
    with httpx.Client(verify=trust(platform), trust_env=False, timeout=30, headers=headers) as client:
        url = f"https://{platform.target('gateway', 'public_http')}/v1/chat/completions"
        assert client.post(url, json=body).json()["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.parametrize("service", SERVICES)
def test_no_listener_hands_anything_to_a_caller_without_a_certificate(platform: TlsPlatform, service: str) -> None:
    target = platform.target(service).replace("0.0.0.0", "127.0.0.1")
    options = [("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", identity(service))]
    without = grpc.ssl_channel_credentials((platform.certs / "ca.pem").read_bytes())
    for channel in (grpc.insecure_channel(target, options[:1]), grpc.secure_channel(target, without, options)):
        with channel, pytest.raises(grpc.RpcError) as refused:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("service", SERVICES)
def test_metrics_and_probes_are_behind_tls(platform: TlsPlatform, service: str) -> None:
    address = platform.target(service, "http")
    context = trust(platform)
    context.check_hostname = False
    token = (platform.certs / "service-token").read_text().strip()
    with httpx.Client(base_url=f"https://{address}", verify=context, trust_env=False, timeout=10) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 401
        assert "# TYPE" in client.get("/metrics", headers={"authorization": f"Bearer {token}"}).text
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}/healthz", trust_env=False, timeout=10)


def test_operators_come_in_with_a_certificate(platform: TlsPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    state = platform.root / "operator"
    state.mkdir()
    files = {
        "service_token_file": platform.certs / "service-token",
        "admin_key_file": platform.root / "admin-key",
        "tls_ca": platform.certs / "ca.pem",
        "tls_cert": platform.certs / "controlplane.pem",
        "tls_key": platform.certs / "controlplane-key.pem",
    }
    lines = [f'{name} = "{path}"' for name, path in files.items()]
    (state / "remote.toml").write_text("\n".join([f'controlplane = "{platform.target("controlplane")}"', *lines]))
    with pytest.raises(SystemExit) as done:
        main(["keys", "--state-dir", str(state), "create", "dev"])
    assert done.value.code == 0
    assert capsys.readouterr().out.startswith(platform.api_key[:3])


def test_a_replica_that_listens_everywhere_is_known_by_where_it_calls_from(platform: TlsPlatform) -> None:
    stored = fleet_pb2.ReplicaSet.FromString((platform.root / "state/router/replicas.pb").read_bytes())
    port = platform.target("worker").rpartition(":")[2]
    assert [replica.ref.endpoint for replica in stored.replicas] == [f"127.0.0.1:{port}"]


def test_a_remote_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "remote.toml").write_text(json.dumps("x"))
    with pytest.raises(SystemExit, match=r"cannot read the configuration file .*remote.toml"):
        main(["keys", "--state-dir", str(tmp_path), "list"])
