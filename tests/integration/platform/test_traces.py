"""One trace per response through real services, over both protocols; what gateways count; and a bad day of a response.

The fleet: two replicas that run one sequence at a time and compute prompts in chunks of 32 tokens.
"""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from headrace.v1 import fleet_pb2, inference_pb2, inference_pb2_grpc, worker_pb2, worker_pb2_grpc
from headrace_cli import waterfall
from headrace_cli.client import AsyncClient
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.errors import HeadraceError
from tests.integration.platform.running_platform import Platform, running_platform, wait_until

FLEET = """
models: {scripted: {source: scripted}}
pools:
  scripted: {model: scripted, engine: scripted, min: 2, max: 2, max_running: 1, max_chunk_tokens: 32}
classes: {standard: {ttft_ms: 30000, inter_token_ms: 250, max_queue_ms: 60000, delivery_reserve_ms: 20, default: true}}
tenants: {dev: {}}
"""
TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
# What each span has to tell; the binding resource needs a known card (test_replica_roofline.py, test_spans.py).
TOLD = {
    "chat scripted": {
        *(f"gen_ai.{name}" for name in ("operation.name", "request.model", "response.id", "response.finish_reasons")),
        *(f"gen_ai.usage.{name}" for name in ("input_tokens", "output_tokens", "cache_read.input_tokens")),
        *(f"headrace.{name}" for name in ("tenant", "slo_class", "snapshot_version", "terminal", "num_attempts")),
    },
    "route": {
        f"headrace.{name}" for name in ("decision", "why", "warm", "replica", "replica_epoch", "attempt", "held_s")
    },
    "queue": {f"headrace.{name}" for name in ("num_waiting_before", "queue_deadline_s", "replica_epoch", "attempt")},
    "prefill": {
        f"headrace.{name}"
        for name in ("num_chunks", "num_cached_tokens", "reservation_bytes", "pool_pressure", "attempt")
    },
    "decode": {
        *(f"headrace.{name}" for name in ("worst_gap_s", "batch_p50", "batch_p95", "collective_s", "snapshot_version")),
        "gen_ai.usage.output_tokens",
    },
    "settle": set(),  # the cost too, if policy confirmed it in time
    "deliver": {"headrace.num_deltas", "headrace.worst_gap_s"},
    "gate": {f"headrace.{name}" for name in ("auth_s", "prepare_s", "admit_s")},
}
LEAVES = ("gate", "route", "queue", "prefill", "decode", "settle", "deliver")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("platform")
    (folder / "fleet.yaml").write_text(FLEET)
    with running_platform(folder / "state", folder / "fleet.yaml") as platform:
        yield platform


def script(*elements: object) -> list[dict[str, str]]:
    return [{"role": "user", "content": json.dumps(elements)}]


def say(platform: Platform, *elements: object, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": script(*elements), **more}
    sent = {"authorization": f"Bearer {platform.api_key}", **(headers or {})}
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.post(f"{platform.http}/v1/chat/completions", json=body, headers=sent)


def trace_of(platform: Platform, response_id: str, *wanted: str) -> fleet_pb2.Trace:
    """Once all services have sent their spans of it: those named, at least."""

    async def ask() -> fleet_pb2.Trace | None:
        async with Admin(StateDir(platform.state_dir)) as admin:
            request = fleet_pb2.GetTraceRequest(response_id=response_id)
            try:
                found: fleet_pb2.Trace = await admin.call(admin.stub.GetTrace, request)
            except HeadraceError:
                return None
            return found if set(wanted) <= {span.name for span in found.spans} else None

    found: fleet_pb2.Trace = wait_until(lambda: asyncio.run(ask()), f"the trace of {response_id} has {wanted}")
    return found


def metrics(platform: Platform, service: str = "gateway") -> dict[str, float]:
    url = f"http://{platform.announced(service)['http']}/metrics"
    text = httpx.get(
        url, headers={"authorization": f"Bearer {platform.service_token}"}, trust_env=False, timeout=60
    ).text
    lines = [line.partition(" # ")[0] for line in text.splitlines() if line and line[0] != "#"]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def check_trace(trace: fleet_pb2.Trace, parent_id: str, *, by_worker: bool = True) -> None:
    """Whole, in one piece, by every service, and as long as it was."""
    root = waterfall.root_of(trace)
    known = {span.span_id for span in trace.spans}
    assert root.parent_id == parent_id
    assert all(span is root or span.parent_id in known for span in trace.spans)
    services = {span.service for span in trace.spans}
    assert services >= {f"headrace-{name}" for name in ("gateway", "policy", "router")}
    assert by_worker == ("headrace-worker" in services)
    spent_ms, took_ms = waterfall.phases_ms(trace), (root.end_ns - root.start_ns) / 1e6
    assert set(spent_ms) <= set(LEAVES)
    assert sum(spent_ms.values()) == pytest.approx(took_ms, rel=0.05)


def test_the_clients_trace_goes_on_through_every_service_over_http(platform: Platform) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CLIENT}-01", "tracestate": "vendor=1"}
    answer = say(platform, "a", "!stall(0.2)", "b", "!stall(0.2)", "c", headers=headers)
    assert answer.status_code == 200
    trace = trace_of(platform, answer.headers["x-headrace-response-id"], "decode", "headrace.v1.Router/Route")
    assert trace.trace_id == TRACE
    check_trace(trace, CLIENT)
    root = waterfall.root_of(trace)
    assert root.name == "chat scripted" and root.attributes["headrace.terminal"] == "completed"
    assert root.attributes["gen_ai.usage.output_tokens"] == "4"
    by_name = {span.name: span.attributes for span in trace.spans}
    for name, wanted in TOLD.items():
        assert wanted <= by_name[name].keys(), name
    assert by_name["route"]["headrace.decision"] and int(by_name["prefill"]["headrace.num_promised_pages"]) > 0
    assert float(by_name["decode"]["headrace.worst_gap_s"]) >= 0.2
    assert by_name["headrace.v1.Policy/Admit"]["headrace.verdict"] == "admitted"


async def grpc_response_id(platform: Platform, traceparent: str) -> str:
    metadata = (("authorization", f"Bearer {platform.api_key}"), ("traceparent", traceparent))
    async with grpc.aio.insecure_channel(platform.grpc, (("grpc.enable_http_proxy", 0),)) as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(model="scripted")
        request.chat.messages.add(role="user", content=json.dumps(["a", "!stall(0.3)", "b"]))
        ids = [event.response_id async for event in stub.Generate(request, timeout=30, metadata=metadata)]
    return str(ids[0])


def test_the_clients_trace_goes_on_over_grpc(platform: Platform) -> None:
    trace_id = "1" + TRACE[1:]
    response_id = asyncio.run(grpc_response_id(platform, f"00-{trace_id}-{CLIENT}-00"))
    trace = trace_of(platform, response_id, "decode", "headrace.v1.Router/Route")
    assert trace.trace_id == trace_id
    check_trace(trace, CLIENT)


@pytest.mark.parametrize(
    "bad", [f"00-{'0' * 32}-{CLIENT}-01", f"00-{TRACE[:30]}-{CLIENT}-01", f"ff-{TRACE}-{CLIENT}-01"]
)
def test_a_trace_context_that_is_not_valid_begins_a_new_trace(platform: Platform, bad: str) -> None:
    answer = say(platform, "a", headers={"traceparent": bad})
    assert answer.status_code == 200
    over_grpc = asyncio.run(grpc_response_id(platform, bad))
    for response_id in (answer.headers["x-headrace-response-id"], over_grpc):
        trace = trace_of(platform, response_id, "decode")
        assert trace.trace_id not in (TRACE, "0" * 32) and waterfall.root_of(trace).parent_id == ""


def test_the_command_draws_it_and_tells_all_of_it_as_json(platform: Platform) -> None:
    answer = say(platform, "a", "!stall(0.6)", "b")
    response_id = answer.headers["x-headrace-response-id"]
    drawn = platform.headrace("trace", response_id)
    assert drawn.returncode == 0 and all(name in drawn.stdout for name in (*LEAVES, "chat scripted", "█"))
    # 600 ms where 250 were allowed, made by the worker.
    assert "a gap between two texts was late, and decode broke the budget" in drawn.stdout
    whole = json.loads(platform.headrace("trace", response_id, "--json").stdout)
    root = next(span for span in whole["spans"] if span["name"] == "chat scripted")
    assert root["attributes"]["headrace.slo.phase"] == "decode"
    unknown = platform.headrace("trace", "resp_unknown")
    assert unknown.returncode == 1 and "no trace of" in unknown.stderr and "Traceback" not in unknown.stderr


def test_every_request_has_one_outcome(platform: Platform) -> None:
    names = ("completed", "cancelled", "failed", "rejected")
    key = 'responses_total{{model="scripted",outcome="{}"}}'
    before = metrics(platform)
    for _ in range(5):
        assert say(platform, "o", "k").status_code == 200
    with platform.client() as client:
        for _ in range(3):
            stream = client.generate("scripted", script("a", "!rate(10)", "!repeat(40,x)"))
            next(iter(stream))
            assert client.cancel(stream.response_id)
            list(stream)
    for _ in range(2):
        assert say(platform, "Hel", "!err").status_code == 500
    assert say(platform, "a", max_tokens=0).status_code == 400
    after = metrics(platform)
    counts = {name: after.get(key.format(name), 0) - before.get(key.format(name), 0) for name in names}
    assert counts == {"completed": 5, "cancelled": 3, "failed": 2, "rejected": 0}
    unknown = 'responses_total{model="unknown",outcome="rejected"}'
    assert after[unknown] - before.get(unknown, 0) == 1  # it was refused before its model was looked at
    label = 'refusals_total{reason="invalid_argument"}'
    assert after[label] - before.get(label, 0) == 1


def test_latency_has_an_edge_at_each_objective_and_exemplars_that_lead_to_traces(platform: Platform) -> None:
    answer = say(platform, "a", "!stall(0.3)", "b", headers={"traceparent": f"00-{TRACE}-{CLIENT}-01"})
    trace_of(platform, answer.headers["x-headrace-response-id"], "decode")
    found = metrics(platform)
    labels = 'model="scripted",slo_class="standard"'
    for edge in ("0.001", "0.7", "30.0", "600.0"):
        assert f'ttft_seconds_bucket{{le="{edge}",{labels}}}' in found
    for edge in ("0.25", "0.3"):
        assert f'inter_token_seconds_bucket{{le="{edge}",{labels}}}' in found
    url = f"http://{platform.announced('gateway')['http']}/metrics"
    headers = {"authorization": f"Bearer {platform.service_token}", "accept": "application/openmetrics-text"}
    page = httpx.get(url, headers=headers, trust_env=False, timeout=60).text
    assert page.rstrip().endswith("# EOF") and f'trace_id="{TRACE}"' in page
    assert found['slo_attainment_ratio{budget="ttft",slo_class="standard",window="5m"}'] == 1.0
    assert found['slo_burn_ratio{slo_class="standard",window="5m"}'] > 0  # failures and late gaps of the tests above


def replicas(platform: Platform) -> dict[int, worker_pb2.Load]:
    """Load of each replica by its process, from what the workers announce."""
    folder = platform.state_dir / "services/controlplane/workers"
    found = {}
    for path in folder.glob("*.announce"):
        told = json.loads(path.read_text())
        found[told["pid"]] = _load(platform, told["grpc"])
    return found


def _load(platform: Platform, target: str) -> worker_pb2.Load:
    metadata = (("authorization", f"Bearer {platform.service_token}"),)
    with grpc.insecure_channel(target, (("grpc.enable_http_proxy", 0),)) as channel:
        stub: Any = worker_pb2_grpc.EngineStub(channel)
        for event in stub.Watch(worker_pb2.WatchRequest(router_id="test"), timeout=10, metadata=metadata):
            if event.WhichOneof("event") == "load":
                return event.load  # type: ignore[no-any-return]
    raise AssertionError("the watch ended without a load")


def test_queued_chunked_rerouted_and_cancelled(platform: Platform) -> None:
    """Others fill both replicas; ours waits, is prefilled, loses its replica, goes elsewhere, and is cancelled."""
    asyncio.run(_bad_day(platform))


async def _bad_day(platform: Platform) -> None:
    long_text = "x" * 100  # with the template more than three chunks of 32 tokens
    async with platform.async_client() as client:
        blockers, ids = set[asyncio.Task[None]](), list[str]()
        while await asyncio.to_thread(_num_running, platform) < 2:  # two of them may have gone to one replica
            assert len(blockers) < 8, "the router does not spread its load"
            blockers.add(asyncio.create_task(_block(client, ids)))
            await asyncio.sleep(0.1)
        ours = client.generate("scripted", script("!stall(3)", long_text, "!rate(20)", "!repeat(200,y)"), deadline_s=60)
        events = aiter(ours)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.7)
        while blockers:
            await asyncio.gather(*(client.cancel(response_id) for response_id in ids))
            _, blockers = await asyncio.wait(blockers, timeout=0.1)
        created = await first
        # It was created, so it left a waiting room: of the two replicas it is on the one that runs something.
        victim = await asyncio.to_thread(wait_until, lambda: _one_running(platform), "one replica runs it")
        os.kill(victim, signal.SIGKILL)
        num_deltas = 0
        async for event in events:
            num_deltas += event.WhichOneof("event") == "delta"
            if num_deltas == 5:
                assert await client.cancel(created.response_id)
                break
        async for _ in events:
            pass
        assert ours.kind == "cancelled"
    trace = await asyncio.to_thread(trace_of, platform, created.response_id, "decode", "deliver")
    told_by = {span.attributes["headrace.attempt"]: span.service for span in trace.spans if span.name == "decode"}
    # A final that takes longer than the ending waits for it, on a busy host, leaves all to the gateway.
    by_worker = told_by["2"] == "headrace-worker"
    check_trace(trace, "", by_worker=by_worker)
    root, spans = waterfall.root_of(trace), list(trace.spans)
    assert root.attributes["headrace.num_attempts"] == "2" and root.attributes["headrace.terminal"] == "cancelled"
    routes = [span for span in spans if span.name == "route"]
    assert len({span.attributes["headrace.replica"] for span in routes}) == 2
    assert [span.error for span in spans if span.name == "attempt"] == ["worker_lost", ""]
    assert max(span.end_ns - span.start_ns for span in spans if span.name == "queue") > 0.5e9
    # The dead worker can say nothing: its part is told by the gateway.
    early = [(span.name, span.service, span.error) for span in spans if span.attributes.get("headrace.attempt") == "1"]
    assert [told for told in early if told[0] in ("queue", "prefill", "decode")] == [
        ("queue", "headrace-gateway", ""),
        ("prefill", "headrace-gateway", "worker_lost"),
    ]
    if by_worker:
        own = {span.name: span.attributes for span in spans if span.service == "headrace-worker"}
        assert int(own["prefill"]["headrace.num_chunks"]) >= 4 and own["decode"]["headrace.finish_reason"] == "client"
    assert len([span for span in spans if span.name in ("gate", "settle", "deliver")]) == 3


async def _block(client: AsyncClient, ids: list[str]) -> None:
    """Keeps a replica busy until it is cancelled."""
    async for event in client.generate("scripted", script("b", "!stall(30)", "c")):
        ids.append(event.response_id)


def _num_running(platform: Platform) -> int:
    return sum(load.num_running for load in replicas(platform).values())


def _one_running(platform: Platform) -> int | None:
    running = [pid for pid, load in replicas(platform).items() if load.num_running]
    return running[0] if len(running) == 1 else None


def test_the_other_services_count_what_they_did(platform: Platform) -> None:
    """Of one response, and of the tests above: one replica was killed, and each response was settled."""
    names = ("policy", "router", "controlplane")
    before = {name: metrics(platform, name) for name in names}
    assert say(platform, "a", "b").status_code == 200

    def moved(service: str, series: str) -> float:
        return metrics(platform, service).get(series, 0) - before[service].get(series, 0)

    assert moved("policy", 'admits_total{verdict="admitted"}') == 1
    assert moved("policy", 'settlements_total{state="applied"}') == 1
    assert moved("policy", 'redis_calls_total{result="answered"}') >= 2
    assert moved("policy", "redis_call_seconds_count") >= 2
    assert moved("router", 'route_decisions_total{held="no"}') == 1
    assert moved("router", "route_seconds_count") == 1
    answered, late = (moved("router", f'prefix_lookups_total{{result="{result}"}}') for result in ("answered", "late"))
    assert answered + late == 1 and moved("router", "prefix_lookup_seconds_count") == answered
    wait_until(lambda: moved("router", 'route_outcomes_total{outcome="completed"}') == 1, "the outcome is reported")
    wait_until(lambda: moved("controlplane", "demand_arrivals_total") == 1, "the demand is reported")
    router, controlplane = metrics(platform, "router"), metrics(platform, "controlplane")
    assert router["ready_replicas"] == router['warm_replicas{model="scripted"}']
    assert controlplane["replica_restarts_total"] >= 1 and controlplane["demand_held"] == 0
    assert controlplane["traces_stored"] >= 5
    report = platform.headrace("audit", timeout_s=120)
    after = metrics(platform, "controlplane")
    assert sum(value for name, value in after.items() if name.startswith("audits_total")) >= 1
    assert (after["audit_unbalanced"] == 0) == (report.returncode == 0), report.stdout


def test_unknown_names_make_no_new_series(platform: Platform) -> None:
    before = len(metrics(platform))
    with httpx.Client(trust_env=False, timeout=60) as client:
        for number in range(200):
            key = platform.api_key if number % 2 else f"hr_{number}_secret"
            body = {"model": f"made-up-{number}", "messages": script("a")}
            client.post(f"{platform.http}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    assert len(metrics(platform)) - before <= 10
