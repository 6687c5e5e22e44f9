"""Usage is what all policies keep, by time, each row once; one that is away is an error and no smaller bill."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc
from headrace_controlplane.peers import Peers
from headrace_controlplane.questions import Questions
from headrace_controlplane.subscribers import Subscribers
from headrace_controlplane.usage_merge import merged
from headrace_kit.errors import HeadraceError

Place = tuple[int, str, int]
places = st.frozensets(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 3)), max_size=12)


def row(place: Place) -> pb.UsageRow:
    at_ms, tenant, number = place
    held = pb.Reservation(response_id=f"r{number}", identity=pb.Identity(tenant=tenant))
    return pb.UsageRow(
        settlement=pb.SettleRequest(reservation=held), settled_at_ms=at_ms, row_id=f"{at_ms}-{number}", cost=1.0
    )


async def stream(rows: list[pb.UsageRow]) -> AsyncIterator[pb.UsageRow]:
    for one in rows:
        yield one


@given(st.lists(places, max_size=4))
async def test_the_rows_of_all_are_merged_by_time_and_each_is_there_once(kept: list[frozenset[Place]]) -> None:
    got = [one async for one in merged([stream([row(place) for place in sorted(each)]) for each in kept])]
    assert got == [row(place) for place in sorted(frozenset().union(*kept))]


class Policy(policy_pb2_grpc.PolicyServicer):
    def __init__(self, *places: Place) -> None:
        self._rows = [row(place) for place in places]

    async def GetUsage(self, request: Any, context: Any) -> AsyncIterator[pb.UsageRow]:
        for one in self._rows:
            if request.tenant in ("", one.settlement.reservation.identity.tenant):
                yield one


async def ask(endpoints: list[str], tenant: str = "") -> list[pb.UsageRow]:
    subscribers, peers = Subscribers(), Peers("token", None)
    for i, endpoint in enumerate(endpoints):
        subscribers.add("policy", f"p{i}", endpoint)
    try:
        return [one async for one in Questions(subscribers, peers).usage(pb.UsageQuery(tenant=tenant))]
    finally:
        await peers.close()


async def test_every_policy_that_subscribes_is_asked() -> None:
    servers, endpoints = [], []
    for servicer in (Policy((1, "a", 1), (3, "b", 1)), Policy((1, "a", 1), (2, "a", 2))):
        server = grpc.aio.server()
        policy_pb2_grpc.add_PolicyServicer_to_server(servicer, server)
        endpoints.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    try:
        assert await ask(endpoints) == [row((1, "a", 1)), row((2, "a", 2)), row((3, "b", 1))]
        assert await ask(endpoints, "b") == [row((3, "b", 1))]
        with pytest.raises(HeadraceError) as refused:
            await ask([*endpoints, "127.0.0.1:9"])
        assert refused.value.reason == "policy_unavailable"
    finally:
        for server in servers:
            await server.stop(0)


async def test_without_a_policy_there_is_no_empty_bill() -> None:
    with pytest.raises(HeadraceError) as refused:
        await ask([])
    assert refused.value.reason == "policy_unavailable"
