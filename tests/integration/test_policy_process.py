"""The policy process as gateways meet it: B52, B61, B66, B67, B70, and an end by kill -9 at any moment."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import policy_pb2 as pb
from tests.integration.policy_process import PolicyProcess, wait_for
from tests.unit.policy.fakes import KEY, api_key, limit, reservation, section, settlement
from tests.unit.policy.redis_process import RedisProcess

CANARY = "AAAA1111"
LIMITS = (limit("tokens_per_day", 100_000), limit("concurrency", 5))


@pytest.fixture(scope="module")
def redis_process() -> Iterator[RedisProcess]:
    process = RedisProcess().start()
    yield process
    process.close()


@pytest.fixture
def start(tmp_path: Path, redis_process: RedisProcess) -> Iterator[Callable[[], PolicyProcess]]:
    """Starts processes on one emptied Redis; leases of one second, and every second keeps its journal as files."""
    with redis_process.client() as client:
        client.flushall()
    given = section(*LIMITS, keys=[api_key(), api_key("hr_old_XYZ99999", expires_at_s=1)])
    started: list[PolicyProcess] = []

    def one() -> PolicyProcess:
        kept = f"--journal={('sqlite', 'file')[len(started) % 2]}"
        process = PolicyProcess(tmp_path / f"p{len(started)}", given, redis_process.url, "--lease-s=1", kept)
        started.append(process)
        return process.start()

    yield one
    for process in started:
        process.stop()


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


async def admit(stub: Any, held: pb.Reservation) -> pb.AdmitResponse:
    """As often as it takes on a host so busy that Redis has no turn within 80 ms."""
    deadline = time.monotonic() + 20
    while True:
        try:
            answer: pb.AdmitResponse = await stub.Admit(pb.AdmitRequest(reservation=held), timeout=30)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline, error
            held.response_id += "+"  # what was refused is released under its old id
        else:
            return answer


async def silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_no_key_is_written_anywhere(start: Callable[[], PolicyProcess], redis_process: RedisProcess) -> None:
    policy = start()
    texts = []
    async with policy.channel() as channel:
        stub = policy.stub(channel)
        identity = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY, model="m"), timeout=30)
        answer = await admit(stub, reservation("r1", identity))
        over = await admit(stub, reservation("r2", identity, 10**6))
        assert over.reason == "tokens_per_day"
        await stub.Settle(settlement(answer.reservation, "completed", 3), timeout=30)
        for credential in ("hr_old_XYZ99999", f"hr_test_{CANARY}x", f"Basic {CANARY}", f"{CANARY}\n", KEY + " " + KEY):
            error = await refusal(stub.Authenticate(pb.AuthenticateRequest(credential=credential), timeout=30))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            texts.append(f"{error.details()} {error.trailing_metadata()} {error.debug_error_string()}")
        broken = pb.AdmitRequest(reservation=reservation(KEY * 10, identity))
        texts.append(str((await refusal(stub.Admit(broken, timeout=30))).details()))
    texts += [str(identity), str(answer), str(over), policy.log]
    texts.append(policy.get("/metrics", authorization="Bearer the-service-token").text)
    with redis_process.client() as client:
        assert client.dbsize() > 0
        texts += [repr(client.dump(key)) + repr(key) for key in client.scan_iter()]
    journal = b"".join(path.read_bytes() for path in policy._folder.glob("journal*"))
    assert not [text for text in texts if CANARY in text or "XYZ99999" in text]
    assert CANARY.encode() not in journal


async def test_every_call_but_probes_asks_for_the_service_token(start: Callable[[], PolicyProcess]) -> None:
    policy = start()
    methods = pb.DESCRIPTOR.services_by_name["Policy"].methods_by_name
    paths = {f"/headrace.v1.Policy/{name}": method.client_streaming for name, method in methods.items()}
    paths["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"] = True
    for token in (None, "wrong"):
        async with policy.channel(token) as channel:
            for path, streams in paths.items():
                kind: Any = channel.stream_stream if streams else channel.unary_stream
                call: Any = kind(path, bytes, bytes)(silence() if streams else b"", timeout=30)
                error = await refusal(call.read())
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED, path
            healthy: Any = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
            assert await healthy(b"", timeout=30)
    for path, code in {"/healthz": 200, "/readyz": 200, "/metrics": 401, "//metrics": 404, "/metrics/": 401}.items():
        assert policy.get(path).status_code == code or policy.get(path).status_code in (307, 404), path
    assert "headrace" not in policy.get("/metrics").text


async def test_what_a_killed_gateway_held_comes_back_by_itself(start: Callable[[], PolicyProcess]) -> None:
    policy = start()
    async with policy.channel() as channel:
        stub = policy.stub(channel)
        identity = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY), timeout=30)
        answers = [await admit(stub, reservation(f"r{i}", identity)) for i in range(6)]
        assert [answer.admitted for answer in answers] == [True] * 5 + [False]

        async def admitted() -> bool:
            return bool((await admit(stub, reservation("new", identity))).admitted)

        await wait_for(admitted, "a lease of a lost gateway never ends", 10)
        rows = [row async for row in stub.GetUsage(pb.UsageQuery(tenant="acme"), timeout=30)]
        assert {row.settlement.reason for row in rows} == {"gateway_lost"}


async def test_killed_policies_lose_no_settlement_and_double_none(start: Callable[[], PolicyProcess]) -> None:
    two, held = [start(), start()], list[pb.Reservation]()
    async with two[0].channel() as channel:
        stub = two[0].stub(channel)
        identity = await stub.Authenticate(pb.AuthenticateRequest(credential=KEY), timeout=30)
        for i in range(5):
            answer = await admit(stub, reservation(f"r{i}", identity))
            held.append(answer.reservation)
        await stub.Settle(settlement(held[0], "completed", 10), timeout=30)
        sending = [
            asyncio.ensure_future(stub.Settle(settlement(one, "completed", 10), timeout=30)) for one in held[1:3]
        ]
        await asyncio.sleep(0)
        two[0].kill()
        await asyncio.gather(*sending, return_exceptions=True)
    async with two[1].channel() as channel:
        stub = two[1].stub(channel)
        for one in held:  # what a gateway's outbox does
            await stub.Settle(settlement(one, "completed", 10), timeout=30)
    two[0].start()
    rows: dict[tuple[str, int], pb.UsageRow] = {}
    for process in two:
        async with process.channel() as channel:
            async for row in process.stub(channel).GetUsage(pb.UsageQuery(tenant="acme"), timeout=30):
                rows[row.settlement.reservation.response_id, row.settled_at_ms] = row
    created = [name.rstrip("+") for (name, _), row in rows.items() if row.settlement.created]
    assert sorted(created) == [f"r{i}" for i in range(5)]
    assert sum(row.settlement.num_output_tokens for row in rows.values()) == 50


async def test_sixty_racing_requests_through_two_processes_never_overshoot(start: Callable[[], PolicyProcess]) -> None:
    two = [start(), start()]
    answered, everyone = [], asyncio.Event()

    async def one(number: int, stub: Any, identity: pb.Identity) -> None:
        answer = await admit(stub, reservation(f"r{number}", identity))
        answered.append(answer.admitted)
        if len(answered) == 60:
            everyone.set()
        await everyone.wait()
        if answer.admitted:
            await stub.Settle(settlement(answer.reservation, "completed", 1), timeout=30)

    async with two[0].channel() as first, two[1].channel() as second:
        stubs = [two[0].stub(first), two[1].stub(second)]
        identity = await stubs[0].Authenticate(pb.AuthenticateRequest(credential=KEY), timeout=30)
        await asyncio.gather(*(one(i, stubs[i % 2], identity) for i in range(60)))
        report = await stubs[0].GetQuota(pb.QuotaQuery(tenant="acme"), timeout=30)
    assert sum(answered) == 5
    assert next(row.level for row in report.levels if row.limit == "concurrency") == 0
