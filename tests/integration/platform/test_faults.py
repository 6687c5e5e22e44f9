"""Real processes killed for real while fifty streams run: one ending each, never a hang, and the platform heals.

A stream that was not created yet may end in a typed status instead.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace_cli.client import AsyncClient, StreamBroken
from headrace_kit.errors import HeadraceError
from tests.integration.platform.running_platform import Platform, running_platform, wait_until

NUM_STREAMS = 50
SLOW = [{"role": "user", "content": json.dumps(["a", "!rate(20)", "!repeat(80,x)", "z"])}]


async def run_one(client: AsyncClient, started: asyncio.Event, model: str = "scripted") -> str:
    """How one stream ended: a terminal, a reason, or `broken`."""
    try:
        async with client.generate(model, SLOW, deadline_s=30.0) as stream:
            async for event in stream:
                if event.WhichOneof("event") == "delta":
                    started.set()
            return f"{stream.kind}:{getattr(getattr(stream.terminal, stream.kind), 'reason', '')}"
    except StreamBroken:
        return "broken"
    except HeadraceError as error:
        return f"refused:{error.reason}"


async def run_streams(platform: Platform, fault: Callable[[], Any]) -> list[str]:
    """Fifty streams; the fault strikes once all of them have text."""
    async with platform.async_client() as client:
        started = [asyncio.Event() for _ in range(NUM_STREAMS)]
        streams = [asyncio.create_task(run_one(client, event)) for event in started]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in started)), 60.0)
        await asyncio.to_thread(fault)
        return list(await asyncio.wait_for(asyncio.gather(*streams), 90.0))


def check_healed(platform: Platform) -> None:
    """One more answer, no response open, no page held."""
    platform.wait_ready()

    def answers() -> bool:
        with platform.client() as client:
            try:
                return client.generate("scripted", [{"role": "user", "content": "hi"}]).text() == "hi"
            except (HeadraceError, StreamBroken):
                return False

    wait_until(answers, "the platform answers again")
    wait_until(lambda: platform.load().num_held_pages == 0, "no page is held")


@pytest.mark.parametrize("service", ["controlplane", "router", "policy"])
async def test_a_service_off_the_token_path_dies_unnoticed(platform: Platform, service: str) -> None:
    others = {name: platform.announced(name)["pid"] for name in ("controlplane", "router", "policy", "gateway")}
    workers = platform.worker_pids()
    endings = await run_streams(platform, lambda: platform.kill(service))
    assert endings == ["completed:"] * NUM_STREAMS
    await asyncio.to_thread(check_healed, platform)
    assert platform.announced(service)["pid"] != others.pop(service)
    assert all(platform.announced(name)["pid"] == pid for name, pid in others.items())
    assert platform.worker_pids() == workers


async def test_redis_dies_unnoticed(platform: Platform) -> None:
    def kill_redis() -> None:
        supervisor = psutil.Process(int((platform.state_dir / "supervisor.lock").read_text()))
        redis = next(child for child in supervisor.children() if "redis-server" in " ".join(child.cmdline()))
        redis.kill()

    assert await run_streams(platform, kill_redis) == ["completed:"] * NUM_STREAMS
    await asyncio.to_thread(check_healed, platform)


@pytest.mark.parametrize("victim", ["worker", "engine"])
async def test_a_dead_worker_is_an_explicit_failure(platform: Platform, victim: str) -> None:
    def kill() -> None:
        pids = platform.worker_pids() if victim == "worker" else platform.engine_pids()
        os.kill(pids[0], signal.SIGKILL)

    before = platform.worker_pids()
    endings = await run_streams(platform, kill)
    assert endings == ["failed:worker_lost"] * NUM_STREAMS
    await asyncio.to_thread(check_healed, platform)
    assert victim == "engine" or platform.worker_pids() != before


async def test_a_dead_gateway_breaks_the_streams_and_the_next_one_closes_the_books(platform: Platform) -> None:
    endings = await run_streams(platform, lambda: platform.kill("gateway"))
    assert endings == ["broken"] * NUM_STREAMS
    wait_until(lambda: platform.load().num_running == 0, "the sequences end")
    await asyncio.to_thread(check_healed, platform)
    log = platform.state_dir / "logs/gateway.log"
    wait_until(lambda: log.read_text().count('"orphan_settled"') == NUM_STREAMS, "all orphans are settled")


async def test_a_worker_that_stops_in_order_ends_its_streams(platform: Platform) -> None:
    """SIGTERM to the worker: what runs is finished, and nothing new is sent there (B76)."""
    endings = await run_streams(platform, lambda: os.kill(platform.worker_pids()[0], signal.SIGTERM))
    assert endings == ["completed:"] * NUM_STREAMS
    await asyncio.to_thread(check_healed, platform)


async def test_a_dead_supervisor_lets_its_streams_finish(tmp_path: Path) -> None:
    """Its processes drain and leave; the worker stays, and the next `up` brings everything back."""
    with running_platform(tmp_path / "platform") as platform:
        pid = int((platform.state_dir / "supervisor.lock").read_text())
        workers = platform.worker_pids()
        assert await run_streams(platform, lambda: os.kill(pid, signal.SIGKILL)) == ["completed:"] * NUM_STREAMS
        again = await asyncio.to_thread(platform.headrace, "up", "--detach")
        assert again.returncode == 0, again.stderr
        await asyncio.to_thread(check_healed, platform)
        assert platform.worker_pids() == workers
