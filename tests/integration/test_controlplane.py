"""The control plane as a process: what it makes, who may ask it, and that nothing it started depends on its life."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc, policy_pb2, routing_pb2, snapshot_pb2
from tests.integration.control_processes import EXTERNAL, FLEET, Process, Site, eventually


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await made.close()


async def test_a_first_start_makes_a_fleet_keys_and_replicas(site: Site) -> None:
    plane = await site.controlplane()
    replica = (await site.admin(plane).ready("scripted-0"))["scripted-0"]
    assert stat.S_IMODE((site.state / "admin_key").stat().st_mode) == 0o600
    assert stat.S_IMODE((site.root / "api_key").stat().st_mode) == 0o600
    assert (site.root / "api_key").read_text().startswith("hr_")
    assert site.launched_pids() == [replica.pid]
    assert plane.readyz() == 200
    stub = fleet_pb2_grpc.FleetStub(site.channel(plane.grpc))

    async def card() -> bytes:
        chunks = stub.GetArtifact(fleet_pb2.GetArtifactRequest(digest=replica.card_digest), timeout=30)
        return b"".join([chunk.data async for chunk in chunks])

    assert b"scripted" in await card()
    call = stub.WatchSnapshot(iter([fleet_pb2.SnapshotAck(service="gateway", instance="g")]))
    section = snapshot_pb2.GatewaySection.FromString((await call.read()).section)
    assert [(model.name, model.card_digest) for model in section.models] == [("scripted", replica.card_digest)]
    call.cancel()


async def test_a_killed_control_plane_leaves_its_worker_and_adopts_it_on_return(site: Site) -> None:
    plane = await site.controlplane()
    before = (await site.admin(plane).ready("scripted-0"))["scripted-0"]
    history = await site.admin(plane).call("History", fleet_pb2.HistoryRequest())

    async def stored() -> bool:
        return before.ref.epoch.encode() in (site.state / "replicas.pb").read_bytes()

    await eventually(stored)
    plane.kill()
    assert site.launched_pids() == [before.pid]
    again = await site.controlplane(listen=plane.grpc)
    admin = site.admin(again)
    # At once, before any heartbeat can have come: replicas are restored with a full lease.
    restored = (await admin.replicas())["scripted-0"]
    assert (restored.pid, restored.ref) == (before.pid, before.ref)
    assert (await admin.call("History", fleet_pb2.HistoryRequest())) == history

    async def beats() -> bool:
        return (await admin.replicas())["scripted-0"].lease_ms > restored.lease_ms

    await eventually(beats)
    assert site.launched_pids() == [before.pid]
    assert (site.state / "workers" / "scripted-0.log").read_text().count('"starting"') == 1


async def test_a_worker_that_died_meanwhile_is_started_again(site: Site) -> None:
    plane = await site.controlplane()
    before = (await site.admin(plane).ready("scripted-0"))["scripted-0"]
    plane.kill()
    psutil.Process(before.pid).kill()
    admin = site.admin(await site.controlplane(listen=plane.grpc))

    async def another() -> bool:
        found = (await admin.replicas()).get("scripted-0")
        return found is not None and bool(found.ref.epoch) and found.ref.epoch != before.ref.epoch

    await eventually(another)
    await admin.ready("scripted-0")
    assert len(site.launched_pids()) == 1


async def test_it_stops_at_once_with_subscribers_connected(site: Site) -> None:
    plane = await site.controlplane()
    await site.router(plane.grpc)
    await site.admin(plane).ready("scripted-0")
    assert plane.terminate() == 0
    assert len(site.launched_pids()) == 1


async def test_a_service_that_is_stopped_says_goodbye_and_one_that_is_killed_does_not(site: Site) -> None:
    """Who says goodbye is missed by no audit (test_seeded_leaks.py)."""
    site.fleet = EXTERNAL
    plane = await site.controlplane()
    polite, rude = [await site.router(plane.grpc, name) for name in ("polite", "rude")]
    admin = site.admin(plane)

    async def names() -> set[str]:
        answer = await admin.call("ListSubscribers", fleet_pb2.ListSubscribersRequest())
        return {one.endpoint for one in answer.subscribers}

    async def left(process: Process) -> bool:
        return process.grpc not in await names()

    async def both_are_there() -> bool:
        return await names() == {polite.grpc, rude.grpc}

    await eventually(both_are_there)
    assert polite.terminate() == 0
    await eventually(lambda: left(polite))
    rude.kill()
    await eventually(lambda: left(rude))
    log = site.root / "controlplane.log"

    async def told() -> bool:
        return "subscriber_broke_off" in log.read_text()

    await eventually(told)
    lines = [line for line in log.read_text().splitlines() if "subscriber_broke_off" in line]
    assert len(lines) == 1 and rude.grpc in lines[0]


async def test_a_fleet_is_applied_compared_listed_and_rolled_back(site: Site) -> None:
    admin = site.admin(await site.controlplane())
    await admin.ready("scripted-0")

    async def card_is_known() -> bool:
        """The first replica's card makes a version of its own, a moment after the replica is ready."""
        entries = (await admin.call("History", fleet_pb2.HistoryRequest())).entries
        return any(entry.kind == "cards" for entry in entries)

    await eventually(card_is_known)
    first = (await admin.call("Show", fleet_pb2.ShowRequest())).version
    changed = FLEET.replace("num_pages: 64", "num_pages: 64, min: 2")
    difference = await admin.call("Diff", fleet_pb2.DiffRequest(fleet_yaml=changed))
    assert list(difference.changes) == ["pools.scripted.min: 1 -> 2"]
    bad = await admin.apply(changed.replace("min: 2", 'min: "two", page_tokens: 24'))
    assert (bad.version, bad.changed) == (first, False)
    assert [problem.path for problem in bad.problems] == ["pools.scripted.min", "pools.scripted.page_tokens"]
    assert bad.problems[0].message == 'expected an integer >= 0, got "two"'
    assert (await admin.apply(changed)).changed
    await admin.ready("scripted-0", "scripted-1")
    back = await admin.call("Rollback", fleet_pb2.RollbackRequest(version=1))
    assert back.changed
    kinds = [entry.kind for entry in (await admin.call("History", fleet_pb2.HistoryRequest())).entries]
    assert kinds == ["rollback", "apply", "cards", "keys", "apply"]
    assert (await admin.call("Show", fleet_pb2.ShowRequest())).fleet_yaml == FLEET


async def test_only_the_admin_key_opens_the_admin_calls(site: Site) -> None:
    site.fleet = EXTERNAL
    plane = await site.controlplane()
    request = fleet_pb2.HistoryRequest()
    tenant_key = (site.root / "api_key").read_text().strip()
    stub = fleet_pb2_grpc.AdminStub(site.channel(plane.grpc))
    for metadata in [(), (("x-headrace-admin-key", tenant_key),), (("x-headrace-admin-key", "wrong"),)]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.History(request, timeout=30, metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    tenant = fleet_pb2_grpc.AdminStub(site.channel(plane.grpc, token=tenant_key))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tenant.History(request, timeout=30, metadata=site.admin_metadata)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    nobody = fleet_pb2_grpc.AdminStub(site.channel(plane.grpc, token=None))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await nobody.History(request, timeout=30, metadata=site.admin_metadata)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    admin_key = site.admin_metadata[0][1]
    assert admin_key not in (site.root / "controlplane.log").read_text()
    assert tenant_key not in (site.root / "controlplane.log").read_text()
    assert admin_key.encode() not in (site.state / "controlplane.db").read_bytes()


async def test_keys_are_made_listed_and_revoked(site: Site) -> None:
    site.fleet = EXTERNAL
    admin = site.admin(await site.controlplane())
    made = await admin.call("CreateKey", fleet_pb2.CreateKeyRequest(tenant="dev", project="p", models=["scripted"]))
    assert made.key.startswith(f"hr_{made.key_id}_")
    listed = (await admin.call("ListKeys", fleet_pb2.ListKeysRequest(tenant="dev"))).keys
    assert {key.key_id for key in listed} > {made.key_id}
    assert (await admin.call("RevokeKey", fleet_pb2.RevokeKeyRequest(key_id=made.key_id))).version == made.version + 1
    for field, request in {
        "tenant": fleet_pb2.CreateKeyRequest(tenant="nobody"),
        "models": fleet_pb2.CreateKeyRequest(tenant="dev", models=["nothing"]),
        "slo_class": fleet_pb2.CreateKeyRequest(tenant="dev", slo_class="none"),
        "scopes": fleet_pb2.CreateKeyRequest(tenant="dev", scopes=["everything"]),
        "expires_in_s": fleet_pb2.CreateKeyRequest(tenant="dev", expires_in_s=2**63 - 1),
    }.items():
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.call("CreateKey", request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, field


async def test_a_replica_is_flushed_and_drained_through_the_control_plane(site: Site) -> None:
    plane = await site.controlplane()
    admin = site.admin(plane)
    before = (await admin.ready("scripted-0"))["scripted-0"]
    flushed = (await admin.call("FlushReplica", fleet_pb2.FlushReplicaRequest())).replicas
    assert [replica.id for replica in flushed] == ["scripted-0"]
    assert flushed[0].epoch != before.ref.epoch
    await admin.call("DrainReplica", fleet_pb2.DrainReplicaRequest(replica_id="scripted-0", deadline_ms=500))
    after = (await admin.ready("scripted-1"))["scripted-1"]
    assert after.pid != before.pid
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.call("DrainReplica", fleet_pb2.DrainReplicaRequest(replica_id="nobody"))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_routers_are_asked_through_the_control_plane(site: Site) -> None:
    plane = await site.controlplane()
    admin = site.admin(plane)
    await admin.ready("scripted-0")
    routers = [await site.router(plane.grpc, name) for name in ("router-a", "router-b")]

    async def both_subscribe() -> bool:
        found = (await admin.call("ListSubscribers", fleet_pb2.ListSubscribersRequest())).subscribers
        return {(s.service, s.endpoint) for s in found} == {("router", r.grpc) for r in routers}

    await eventually(both_subscribe)
    decision = await site.routes(routers[1]).pick()
    told = await admin.call("ExplainRoute", routing_pb2.ExplainRequest(decision_id=decision.decision_id))
    assert (told.response_id, told.why) == ("r", decision.why)

    for method, request, code in [
        ("ExplainRoute", routing_pb2.ExplainRequest(decision_id="nobody's"), grpc.StatusCode.INVALID_ARGUMENT),
        ("GetTenantQuota", policy_pb2.QuotaQuery(tenant="dev"), grpc.StatusCode.UNAVAILABLE),
        ("GetCost", fleet_pb2.CostRequest(), grpc.StatusCode.UNAVAILABLE),
        ("GetTrace", fleet_pb2.GetTraceRequest(response_id="resp_unknown"), grpc.StatusCode.INVALID_ARGUMENT),
    ]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.call(method, request)
        assert caught.value.code() == code, method


@pytest.mark.parametrize(
    ("fleet", "part"),
    [("models: [", "is not valid"), ("models: {}\npools: {a: {}}", "pools.a.model: is missing")],
)
async def test_a_first_start_with_a_bad_file_says_what_is_wrong(site: Site, fleet: str, part: str) -> None:
    site.fleet = fleet
    with pytest.raises(AssertionError, match=part):
        await site.controlplane()
    assert site.processes[0].child.returncode == 2
