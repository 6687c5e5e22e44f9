"""Whoever is asked for metrics and does not answer is told as silent, and not left out."""

import socket
from collections.abc import Iterator

import pytest

from headrace_controlplane import metrics_of_all
from headrace_controlplane.metrics_of_all import MetricsOfAll
from headrace_controlplane.peers import Peers
from headrace_controlplane.registry import Record, Registry
from headrace_controlplane.subscribers import Subscribers


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Where a stopped process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_one_that_is_stopped_is_silent(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_of_all, "_ASK_S", 0.1)
    subscribers, registry, peers = Subscribers(), Registry(lease_s=60.0, now=0.0), Peers("token", None)
    subscribers.add("policy", "p", endpoint)
    subscribers.remove(subscribers.add("gateway", "g", endpoint))  # cut off: it may hold streams still
    registry.heartbeat(Record(id="w-1", epoch="e", endpoint=endpoint, state="ready"), 0.0)
    told = [one async for one in MetricsOfAll(subscribers, registry, peers).ask()]
    await peers.close()
    assert (told[0].service, told[0].silent) == ("controlplane", False) and told[0].text
    assert sorted((one.service, one.instance, one.silent, one.text) for one in told[1:]) == [
        ("gateway", endpoint, True, ""),
        ("policy", endpoint, True, ""),
        ("worker", "w-1", True, ""),
    ]
