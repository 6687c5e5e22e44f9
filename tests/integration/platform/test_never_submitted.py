"""A gateway that is killed between a decision and its submission: nobody is left to report it, and the books close."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, fleet_pb2_grpc
from headrace_cli.client import StreamBroken
from headrace_kit.errors import HeadraceError
from headrace_router.gateway_watch import LOOK_S
from headrace_router.gateways import ORPHAN_S
from tests.integration.platform.running_platform import Platform, wait_until
from tests.integration.platform.test_audit import audit, broken
from tests.integration.platform.test_books import script

pytestmark = pytest.mark.slow
NUM_REQUESTS = 8


def books(platform: Platform, service: str = "", target: str = "") -> fleet_pb2.GetBooksResponse:
    metadata = (("authorization", f"Bearer {platform.service_token}"),)
    target = target or platform.announced(service)["grpc"]
    with grpc.insecure_channel(target, (("grpc.enable_http_proxy", 0),)) as channel:
        stub: Any = fleet_pb2_grpc.BookkeepingStub(channel)
        told: fleet_pb2.GetBooksResponse = stub.GetBooks(fleet_pb2.GetBooksRequest(), timeout=10.0, metadata=metadata)
    return told


@contextlib.contextmanager
def stopped(platform: Platform, service: str) -> Iterator[None]:
    pid = platform.announced(service)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def num_submitted(platform: Platform) -> float:
    """To the worker, ever."""
    target = next(row["grpc"] for row in platform.status()["services"] if row["name"].startswith("worker/"))
    return next(row.left for row in books(platform, target=target).rows if row.equation.startswith("submitted"))


def num_given_up(platform: Platform) -> int:
    """How often the router gave something up."""
    return (platform.state_dir / "logs/router.log").read_text().count('"decisions_given_up"')


def ask(platform: Platform) -> threading.Thread:
    """One request whose answer nobody waits for."""

    def run() -> None:
        with platform.client() as client, contextlib.suppress(HeadraceError, StreamBroken):
            list(client.generate("scripted", script("a")))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_was_routed_and_never_submitted_ends_within_the_orphan_time(platform: Platform) -> None:
    with platform.client() as client:
        list(client.generate("scripted", script("a")))
    with stopped(platform, "router"):
        asking = [ask(platform) for _ in range(NUM_REQUESTS)]
        wait_until(lambda: books(platform, "gateway").num_attempts == NUM_REQUESTS, "all wait for a decision")
        gateway = platform.announced("gateway")["pid"]
        os.kill(gateway, signal.SIGSTOP)
    num_decided = wait_until(lambda: books(platform, "router").num_attempts, "the router decides, and nobody hears it")
    os.kill(gateway, signal.SIGKILL)
    killed_at = time.monotonic()
    for thread in asking:
        thread.join(60)
    platform.wait_ready()
    assert books(platform, "router").num_attempts >= num_decided, "they are kept for whoever may settle them"
    assert num_submitted(platform) == 1, "no worker ever heard of them"
    wait_until(lambda: books(platform, "router").num_attempts == 0, "the router gives them up", 60.0)
    assert time.monotonic() - killed_at >= ORPHAN_S - LOOK_S
    wait_until(lambda: broken(audit(platform)) == [], "the books balance", 60.0)
    assert num_given_up(platform) == 1


def test_a_gateway_that_is_stopped_for_longer_than_that_keeps_what_it_waits_for(platform: Platform) -> None:
    """It is slow, not gone: until it says itself what became of its answer, nobody else does."""
    platform.wait_ready()
    before = num_given_up(platform)

    def run() -> None:
        with platform.client() as client, contextlib.suppress(HeadraceError, StreamBroken):
            list(client.generate("scripted", script("a", "!stall(60)")))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: platform.load().num_running == 1, "it runs")
    with stopped(platform, "gateway"):
        deadline = time.monotonic() + ORPHAN_S + 3 * LOOK_S
        while time.monotonic() < deadline:
            assert books(platform, "router").num_attempts == 1
            time.sleep(0.5)
    thread.join(90)
    wait_until(lambda: books(platform, "router").num_attempts == 0, "it reports", 60.0)
    wait_until(lambda: broken(audit(platform)) == [], "the books balance", 60.0)
    assert num_given_up(platform) == before
