"""The ledger on a real cluster of three nodes: every key of a tenant is on one node, and tenants are on all of them."""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_policy import redis_link
from headrace_policy.decide import Billed, Prices
from headrace_policy.ledger import Admission, Charge, Closing, Held, Terms
from headrace_policy.limits import Limit
from headrace_policy.redis_ledger import RedisLedger
from headrace_policy.redis_link import RedisLink
from tests.unit.policy.redis_process import RedisProcess

LIMITS = [Limit("rpm", 10, "tenant"), Limit("tokens_per_day", 1e6, "key", "k1"), Limit("concurrency", 100, "tenant")]
NUM_SLOTS = 16384


def free_ports(count: int) -> list[int]:
    """Ports whose bus port, 10,000 above, is free as well."""
    found: list[int] = []
    for port in range(20_000, 50_000, 7):
        with socket.socket() as one, socket.socket() as bus:
            try:
                one.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Any]]:
    ports = free_ports(3)
    flags = ["--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--port"]
    processes = [RedisProcess(*flags, str(port)).start() for port in ports]
    clients: list[Any] = [process.client() for process in processes]
    share = NUM_SLOTS // 3 + 1
    for i, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTS", *range(i * share, min((i + 1) * share, NUM_SLOTS)))
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0])
    deadline = time.monotonic() + 20
    whole = {b"cluster_state:ok", b"cluster_slots_ok:16384", b"cluster_known_nodes:3"}
    while not all(whole <= set(client.execute_command("CLUSTER", "INFO").split()) for client in clients):
        assert time.monotonic() < deadline, "the cluster does not form"
        time.sleep(0.05)
    yield clients
    for client, process in zip(clients, processes, strict=True):
        client.close()
        process.close()


def port_of(client: Any) -> int:
    return int(client.config_get("port")["port"])


def asked(response_id: str) -> Admission:
    charges = tuple(Charge(limit.name, limit.scope, limit.subject, 1.0, limit.rate) for limit in LIMITS)
    return Admission(response_id, LIMITS, Terms(charges, Prices()), b"message")


async def test_every_call_of_every_tenant_works_on_a_cluster(nodes: list[Any]) -> None:
    client = redis_link.connect(f"redis+cluster://127.0.0.1:{port_of(nodes[0])}")
    ledger = RedisLedger(RedisLink(client, decide_s=30.0, patient_s=30.0), lease_ms=30_000)
    tenants = [f"tenant-{i}" for i in range(12)]
    try:
        for tenant in tenants:
            await ledger.levels(tenant, LIMITS)  # the client learns where slots are before many ask at once
            answers = await asyncio.gather(*(ledger.admit(tenant, asked(f"r{i}")) for i in range(15)))
            assert [answer.state for answer in answers].count("admitted") == 10
            held = Held("r0", asked("r0").terms, b"message")
            assert (await ledger.renew(tenant, [held]))[0] in ("renewed", "restored")
            closing = Closing("r0", "owner", "completed", Billed(1, 1, 0, 1), held.terms, 0, b"row")
            assert (await ledger.settle(tenant, closing)).state == "applied"
            assert (await ledger.tour(tenant, 10)).num_rows == 1
            rows = await ledger.rows(tenant, 10)
            await ledger.drop_rows(tenant, [row_id for row_id, _ in rows])
            assert len(await ledger.levels(tenant, LIMITS)) == 3
    finally:
        await client.aclose()
    where = [{key.split(b"}")[0] for key in node.scan_iter(match="headrace:{*")} for node in nodes]
    assert all(where), "tenants are spread over all nodes"
    assert sum(map(len, where)) == len(tenants), "and none over two"
