"""The audit over a live platform: it balances after responses of every ending, under load, and after deaths."""

import contextlib
import json
import os
import signal
import threading
from typing import Any

from headrace_cli.client import StreamBroken
from tests.integration.platform.running_platform import Platform, wait_until
from tests.integration.platform.test_books import script


def audit(platform: Platform) -> dict[str, Any]:
    done = platform.headrace("audit", "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["balanced"] else 1)
    return report


def broken(report: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    rows = [row for row in report["rows"] if not row["balanced"]]
    return [(row["component"], row["equation"], row["left"], row["right"]) for row in rows]


def run_every_ending(platform: Platform) -> None:
    with platform.client() as client:
        list(client.generate("scripted", script("a", "b")))
        list(client.generate("scripted", script("a", "b", "c"), max_output_tokens=2))
        list(client.generate("scripted", script("a", "!err")))
        gone = client.generate("scripted", script("a", "!stall(30)"))
        for event in gone:
            if event.WhichOneof("event") == "delta":
                break
        gone.__exit__()


def test_every_ending_is_accounted_for(platform: Platform) -> None:
    run_every_ending(platform)
    report = audit(platform)
    assert broken(report) == []
    told = {row["component"].partition(" ")[0] for row in report["rows"]}
    assert told == {"gateway", "router", "worker", "fleet"}
    handed_over = [row for row in report["rows"] if "journal" in row["equation"]]
    assert handed_over and handed_over[0]["right"] > 0
    assert "all balance" in platform.headrace("audit").stdout


def test_it_balances_under_load(platform: Platform) -> None:
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            run_every_ending(platform)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert broken(audit(platform)) == []
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_it_balances_after_a_worker_and_a_control_plane_died(platform: Platform) -> None:
    run_every_ending(platform)
    for pid in platform.worker_pids():
        os.kill(pid, signal.SIGKILL)
    platform.kill("controlplane")
    platform.wait_ready()
    run_every_ending(platform)
    wait_until(lambda: broken(audit(platform)) == [], "the books balance", 20.0)


def test_it_balances_after_a_gateway_died_with_open_streams(platform: Platform) -> None:
    with platform.client() as client:
        running = client.generate("scripted", script("a", "!stall(30)"))
        next(event for event in running if event.WhichOneof("event") == "delta")
        platform.kill("gateway")
        with contextlib.suppress(StreamBroken):
            list(running)
    platform.wait_ready()
    wait_until(lambda: broken(audit(platform)) == [], "the books balance", 40.0)


def test_a_service_that_says_nothing_makes_it_incomplete(platform: Platform) -> None:
    """A gateway that is stopped may hold anything; nothing was lost, so it balances again once that goes on."""
    pid = platform.announced("gateway")["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        done = platform.headrace("audit", timeout_s=120.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert f"INCOMPLETE: no books from gateway {platform.announced('gateway')['grpc']}" in done.stdout
    wait_until(lambda: broken(audit(platform)) == [], "the books balance", 40.0)
