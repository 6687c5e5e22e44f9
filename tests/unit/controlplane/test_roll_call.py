"""Who is known to be gone: whoever stopped subscribing from a place where nobody, or somebody else, is by now."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.v1 import fleet_pb2
from headrace_controlplane.fleet_servicer import FleetServicer
from headrace_controlplane.roll_call import RollCall
from headrace_controlplane.subscribers import DEPARTED_S, MISSED_S, Subscribers
from headrace_kit.errors import InvalidRequest


class Place:
    """An address where somebody listens, and accepts as little as a stopped process does."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def left(endpoint: str, *, leaving: bool = False) -> Subscribers:
    """One gateway, g, that has ended its subscription."""
    subscribers = Subscribers()
    gateway = subscribers.add("gateway", "g", endpoint)
    gateway.leaving = leaving
    subscribers.remove(gateway)
    return subscribers


async def gone(subscribers: Subscribers) -> list[str]:
    return await RollCall(subscribers).gone("gateway", ["g", "unknown"])


async def test_one_that_subscribes_is_not_asked_for(place: Place) -> None:
    subscribers = Subscribers()
    subscribers.add("gateway", "g", place.endpoint)
    place.close()
    assert await gone(subscribers) == []


@pytest.mark.parametrize("leaving", [False, True])
async def test_one_that_stopped_subscribing_is_gone_once_nobody_listens_there(place: Place, leaving: bool) -> None:
    """A goodbye proves nothing: it is said before the last answers end."""
    subscribers = left(place.endpoint, leaving=leaving)
    assert await gone(subscribers) == [], "stopped, or cut off from the control plane alone"
    place.close()
    assert await gone(subscribers) == ["g"]
    assert await gone(subscribers) == ["g"], "to every router that asks"


async def test_one_that_subscribes_again_is_not_gone(place: Place) -> None:
    subscribers = left(place.endpoint)
    place.close()
    subscribers.add("gateway", "g", place.endpoint)
    assert await gone(subscribers) == []


@pytest.mark.parametrize("service", ["gateway", "policy"])
async def test_where_another_process_is_now_it_is_no_more(place: Place, service: str) -> None:
    """A container that restarts has the address of the one before."""
    subscribers = left(place.endpoint)
    subscribers.add(service, "next", place.endpoint)
    assert await gone(subscribers) == ["g"]


async def test_one_whose_place_is_not_known_is_not_known_to_be_gone() -> None:
    assert await gone(left("")) == []


@pytest.mark.parametrize("error", [OSError(errno.EHOSTUNREACH, "no route"), TimeoutError(), socket.gaierror()])
async def test_one_whose_host_is_away_is_gone_when_nobody_misses_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def away(host: str, port: int) -> None:
        raise error

    monkeypatch.setattr("asyncio.open_connection", away)
    now = 0.0
    subscribers = Subscribers(lambda: now)
    subscribers.remove(subscribers.add("gateway", "g", "elsewhere:1"))
    now = MISSED_S
    assert await gone(subscribers) == []
    now += 1
    assert await gone(subscribers) == ["g"], "nobody misses it any more: no audit asks for its books"


async def test_where_one_was_is_remembered_for_longer_than_anybody_asks(place: Place) -> None:
    now = 0.0
    subscribers = Subscribers(lambda: now)
    subscribers.remove(subscribers.add("gateway", "g", place.endpoint))
    place.close()
    now = DEPARTED_S
    subscribers.remove(subscribers.add("gateway", "other", place.endpoint))
    assert await gone(subscribers) == ["g"]
    now += 1
    subscribers.remove(subscribers.add("gateway", "other", place.endpoint))
    assert await gone(subscribers) == []


async def test_a_router_is_told_and_a_service_that_does_not_subscribe_is_refused(place: Place) -> None:
    subscribers = left(place.endpoint)
    place.close()
    state: Any = SimpleNamespace(subscribers=subscribers)
    servicer = FleetServicer(state, asyncio.Event())
    request = fleet_pb2.FindGoneRequest(service="gateway", instances=["unknown", "g"])
    assert list((await servicer.FindGone(request, None)).gone) == ["g"]
    request.service = "controlplane"
    with pytest.raises(InvalidRequest) as refused:
        await servicer.FindGone(request, None)
    assert refused.value.field == "service"
