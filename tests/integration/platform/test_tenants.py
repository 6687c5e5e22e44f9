"""Who calls and what they may use, on a whole platform: every door, a key that must appear nowhere, three gateways.

The services log everything and send every trace that they keep to a collector of ours, so that all they say is seen.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from starlette.routing import Route

from headrace.v1 import fleet_pb2, inference_pb2, policy_pb2, routing_pb2, worker_pb2
from headrace_cli.client import AsyncClient
from headrace_gateway.front import Front
from headrace_gateway.http.app import App
from headrace_kit.errors import HeadraceError
from headrace_kit.health import Health
from tests.integration.platform.http.http_client import script, user
from tests.integration.platform.running_platform import SCRIPTED, Platform, running_platform, wait_until

TENANTS = """
  small: {limits: [{name: rpm, capacity: 2}]}
  racer: {limits: [{name: concurrency, capacity: 5}]}
  books: {}
"""
FILES = (inference_pb2, policy_pb2, routing_pb2, worker_pb2, fleet_pb2)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PROBES = {"/healthz", "/readyz"}
ELSEWHERE = ("/headrace.v1.Inference/",)
"""Public."""
DIRECT = (("grpc.enable_http_proxy", 0),)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.seen.append(request.SerializeToString())
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    names = ["GATEWAY", "POLICY", "ROUTER", "CONTROLPLANE", "WORKER"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setenv(f"HEADRACE_{name}_OTLP_ENDPOINT", f"127.0.0.1:{port}")
            patch.setenv(f"HEADRACE_{name}_LOG_LEVEL", "debug")
        yield collector
    server.stop(0)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("tenants")
    fleet = folder / "fleet.yaml"
    fleet.write_text(SCRIPTED.read_text().replace("  dev: {}\n", f"  dev: {{}}{TENANTS}"))
    with running_platform(folder / "platform", fleet) as platform:
        yield platform


def new_key(platform: Platform, tenant: str, *words: str) -> str:
    created = platform.headrace("keys", "create", tenant, *words)
    assert created.returncode == 0, created.stderr
    return created.stdout.split()[-1]


def ask(platform: Platform, authorization: str, text: str = script("a"), **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": user(text), **fields}
    headers = {"authorization": authorization, "traceparent": f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"}
    return httpx.post(f"{platform.http}/v1/chat/completions", json=body, headers=headers, timeout=20, trust_env=False)


def known(platform: Platform, key: str) -> str:
    """The key, once policy has heard of it."""
    headers = {"authorization": f"Bearer {key}"}

    def answers() -> bool:
        return httpx.get(f"{platform.http}/v1/models", headers=headers, trust_env=False, timeout=60).status_code == 200

    wait_until(answers, "the key is known")
    return key


def methods() -> list[str]:
    """Every RPC of the contract, and reflection."""
    found = [
        f"/{service.full_name}/{method}"
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods_by_name
    ]
    return [*found, REFLECTION]


def refusal(address: str, path: str, *metadata: tuple[str, str], message: bytes = b"") -> str:
    """The status of a call, as a stream that asks once and never ends: any kind of RPC takes it."""
    with grpc.insecure_channel(address, DIRECT) as channel:
        kind: Any = channel.stream_stream(path)
        call = kind(iter([message]), timeout=10, metadata=metadata)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
    return str(refused.value.code().name)


def test_every_rpc_of_every_listener_wants_a_credential(platform: Platform) -> None:
    rows = platform.status()["services"]
    internal = {row["name"]: row["grpc"] for row in rows if row["grpc"]}
    assert {name.partition("/")[0] for name in internal} >= {"gateway", "policy", "router", "controlplane", "worker"}
    served = set()
    for name, address in internal.items():
        for path in methods():
            without = refusal(address, path)
            tenant = refusal(address, path, ("authorization", f"Bearer {platform.api_key}"))
            if without == "UNIMPLEMENTED":
                assert refusal(address, path, ("authorization", f"Bearer {platform.service_token}")) == without, path
            else:
                assert (without, tenant) == ("UNAUTHENTICATED", "PERMISSION_DENIED"), f"{name} {path}"
                served.add(path)
        with grpc.insecure_channel(address, DIRECT) as channel:
            healthy: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert healthy(b"", timeout=10) is not None
    assert served == {path for path in methods() if not path.startswith(ELSEWHERE)}
    public, asked = platform.grpc, well_formed()
    for path in methods():
        expected = "UNAUTHENTICATED" if path in asked else "UNIMPLEMENTED"
        assert refusal(public, path, message=asked.get(path, b"")) == expected, path  # B71: nothing of the inside


def test_administration_wants_the_admin_key_whoever_asks(platform: Platform) -> None:
    """B71: the service token alone, or with a tenant's key in the admin key's place, opens nothing."""
    address, workers = platform.announced("controlplane")["grpc"], platform.worker_pids()
    token = ("authorization", f"Bearer {platform.service_token}")
    admin = [path for path in methods() if path.startswith("/headrace.v1.Admin/")]
    assert len(admin) > 10
    for path in admin:
        assert refusal(address, path, token) == "PERMISSION_DENIED", path
        assert refusal(address, path, token, ("x-headrace-admin-key", platform.api_key)) == "PERMISSION_DENIED", path
    assert platform.worker_pids() == workers


def test_an_error_names_no_place_and_no_secret(platform: Platform) -> None:
    """B69: what has no replica says so, and nothing of who could have served it."""
    addresses = [row[kind] for row in platform.status()["services"] for kind in ("grpc", "http") if row[kind]]
    answers = [ask(platform, f"Bearer {platform.api_key}", model="nothing"), ask(platform, "Bearer hr_a_b")]
    answers.append(ask(platform, f"Bearer {platform.api_key}", script("!err")))
    assert [answer.status_code for answer in answers] == [404, 401, 500]
    for answer in answers:
        told = answer.text + repr(answer.headers)
        assert not [place for place in (*addresses, platform.service_token) if place in told]


def well_formed() -> dict[str, bytes]:
    """What Inference would answer, if only it knew who asks; sizes are checked before that."""
    messages = [inference_pb2.Message(role="user", content="hi")]
    whole = inference_pb2.GenerateRequest(model="scripted", chat=inference_pb2.Conversation(messages=messages))
    requests = {
        "Generate": whole,
        "Cancel": inference_pb2.CancelRequest(response_id="resp_1"),
        "CountTokens": inference_pb2.CountTokensRequest(request=whole),
        "ListModels": inference_pb2.ListModelsRequest(),
    }
    assert set(requests) == set(inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods_by_name)
    return {f"/headrace.v1.Inference/{name}": one.SerializeToString() for name, one in requests.items()}


def test_every_http_route_of_every_listener_wants_a_credential(platform: Platform) -> None:
    public = [route.path for route in App(cast(Front, None), Health(), 1).build().routes if isinstance(route, Route)]
    assert set(public) > PROBES and len(public) > 8
    rows = platform.status()["services"]
    inside = {row["name"]: row["http"] for row in rows if row["http"]}
    with httpx.Client(trust_env=False, timeout=60) as client:
        for path in public:
            for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"):
                status = client.request(method, f"{platform.http}{path.replace('{model:path}', 'm')}").status_code
                assert status == 401 or (path in PROBES and status in (200, 405)), f"{method} {path}: {status}"
        for name, address in inside.items():
            assert client.get(f"http://{address}/metrics").status_code == 401, name
            assert {client.get(f"http://{address}{path}").status_code for path in PROBES} == {200}, name
            assert client.get(f"http://{address}/admin").status_code in (401, 404), name


def test_a_key_appears_nowhere(platform: Platform, collector: Collector) -> None:
    key, old = new_key(platform, "small"), new_key(platform, "dev", "--expires-in", "1")
    secrets = [one.rpartition("_")[2] for one in (known(platform, key), old)]
    said = [ask(platform, f"Bearer {key}") for _ in range(3)]
    assert [answer.status_code for answer in said] == [200, 200, 429]
    wait_until(lambda: ask(platform, f"Bearer {old}").status_code == 401, "the key has expired")
    for header in (f"Bearer {key}x", f"Basic {key}", key, f"Bearer {key} {key}", f"Bearer {key}\t{key}"):
        said.append(ask(platform, header))
        assert said[-1].status_code in (400, 401), header
    with httpx.Client(trust_env=False, timeout=60, base_url=platform.http) as client:
        said.append(client.get("/v1/models", params={"api_key": key, "key": key}))
        said.append(client.post("/v1/completions", params={"token": key}, content=b"{", headers={"x-api-key": old}))
    assert [answer.status_code for answer in said[-2:]] == [401, 401]
    other = known(platform, new_key(platform, "dev"))
    secrets.append(other.rpartition("_")[2])
    said.append(ask(platform, f"Bearer {other}", script("a", "!die")))
    assert said[-1].status_code >= 500, said[-1].text
    platform.wait_ready()
    headers = {"authorization": f"Bearer {platform.service_token}"}
    texts = [answer.text + repr(answer.headers) for answer in said]
    for row in platform.status()["services"]:
        texts.append(httpx.get(f"http://{row['http']}/metrics", headers=headers, trust_env=False, timeout=60).text)
    wait_until(lambda: collector.seen, "traces arrive", 15.0)
    written = [path for path in platform.state_dir.rglob("*") if path.is_file() and path.name != "api-key"]
    assert any(path.suffix == ".log" for path in written) and any("aof" in path.name for path in written)
    everything = [*(text.encode() for text in texts), *collector.seen, *(path.read_bytes() for path in written)]
    for secret in secrets:
        assert not [content[:200] for content in everything if secret.encode() in content]


def test_a_revoked_key_is_refused_within_two_seconds(platform: Platform) -> None:
    key = known(platform, new_key(platform, "dev"))
    assert ask(platform, f"Bearer {key}").status_code == 200  # the gateway keeps its identity now
    assert platform.headrace("keys", "revoke", key.split("_")[1]).returncode == 0
    revoked, asked = time.monotonic(), list[float]()

    def refused() -> bool:
        asked.append(time.monotonic())
        return ask(platform, f"Bearer {key}").status_code == 401

    wait_until(refused, "the key is refused")
    assert all(at - revoked < 2.0 for at in asked[:-1]), "what was asked later was still answered"


@contextlib.contextmanager
def more_gateways(platform: Platform, folder: Path, count: int) -> Iterator[list[str]]:
    """Public gRPC addresses of further gateways of the same platform."""
    announces, processes = [folder / f"g{i}.json" for i in range(count)], []
    targets = {name: platform.announced(name)["grpc"] for name in ("controlplane", "policy", "router")}
    try:
        for announce in announces:
            flags = {
                **targets,
                "service-token-file": platform.state_dir / "service-token",
                "state-dir": announce.with_suffix(""),
                "announce": announce,
            }
            words = [f"--{name}={value}" for name, value in flags.items()]
            with announce.with_suffix(".log").open("wb") as log:
                command = [sys.executable, "-m", "headrace_gateway", *words]
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        for announce in announces:
            wait_until(announce.exists, "a further gateway starts", 20.0)
        yield [str(json.loads(announce.read_text())["public_grpc"]) for announce in announces]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            assert process.wait(20) == 0


async def test_sixty_racing_requests_through_three_gateways_take_exactly_the_limit(
    platform: Platform, tmp_path: Path
) -> None:
    key, number = known(platform, new_key(platform, "racer")), 60
    outcomes: list[str] = []
    everyone = asyncio.Event()

    async def one(client: AsyncClient) -> None:
        try:
            async with client.generate("scripted", user(script("!rate(20)", "!repeat(400,x)"))) as stream:
                async for event in stream:
                    assert event.WhichOneof("event") == "created"
                    outcomes.append("admitted")
                    await asyncio.wait_for(everyone.wait(), 30)
                    break
        except HeadraceError as error:
            outcomes.append(error.reason)
        if len(outcomes) == number:
            everyone.set()

    with more_gateways(platform, tmp_path, 2) as others:  # B61
        clients = [AsyncClient(address, api_key=key) for address in (platform.grpc, *others)]
        for client in clients:
            await ready(client)
        tasks = [asyncio.create_task(one(clients[i % 3])) for i in range(number)]
        while len(outcomes) < number:
            assert not [task for task in tasks if task.done() and task.exception()]
            await asyncio.sleep(0.02)
        load = await asyncio.to_thread(platform.load)
        everyone.set()
        await asyncio.gather(*tasks)
        for client in clients:
            await client.close()
    assert (outcomes.count("admitted"), outcomes.count("concurrency")) == (5, 55)
    assert load.num_running <= 5


async def ready(client: AsyncClient) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            if [model for model in await client.models() if model]:
                return
        except HeadraceError as error:
            assert time.monotonic() < deadline, error
        await asyncio.sleep(0.05)


def tokens(platform: Platform, kind: str) -> int:
    """What the workers counted."""
    headers, total = {"authorization": f"Bearer {platform.service_token}"}, 0.0
    for row in platform.status()["services"]:
        if row["name"].startswith("worker/"):
            text = httpx.get(f"http://{row['http']}/metrics", headers=headers, trust_env=False, timeout=60).text
            start = f'worker_tokens_total{{kind="{kind}"}}'
            total += sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(start))
    return round(total)


def test_cancelled_streams_are_booked_to_the_token(platform: Platform) -> None:
    """B64: five streams with prompts of 602 tokens, each closed after 64 bytes."""
    key = known(platform, new_key(platform, "books"))
    headers = {"authorization": f"Bearer {key}"}
    before = {kind: tokens(platform, kind) for kind in ("prompt", "accepted")}
    text = '["!rate(50)","!repeat(500,x)"]'.ljust(582)
    body = {"model": "scripted", "messages": user(text), "stream": True}
    url = f"{platform.http}/v1/chat/completions"
    for _ in range(5):
        with httpx.stream("POST", url, json=body, headers=headers, trust_env=False, timeout=20) as answer:
            received = 0
            for piece in answer.iter_bytes():
                received += len(piece)
                if received >= 64:
                    break

    def rows() -> list[dict[str, Any]]:
        printed = platform.headrace("usage", "--tenant", "books", "--format", "json").stdout
        found: list[dict[str, Any]] = json.loads(printed)
        return found

    booked = wait_until(lambda: len(found := rows()) == 5 and found, "all are settled", 15.0)
    assert {row["kind"] for row in booked} == {"cancelled"}
    assert [row["prompt_tokens"] for row in booked] == [602] * 5

    def reconciled() -> bool:
        counted = {kind: tokens(platform, kind) - before[kind] for kind in before}
        return counted == {"prompt": 3010, "accepted": sum(row["output_tokens"] for row in booked)}

    wait_until(reconciled, "the engine counted what was booked")
