"""B77: a replica that stops answering holds up its own requests alone, and those go once to another one."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from tests.integration.platform.running_platform import Platform, running_platform

FLEET = """
models: {scripted: {source: scripted}}
pools: {main: {model: scripted, engine: scripted, min: 2}}
classes: {standard: {ttft_ms: 30000, default: true}}
tenants: {dev: {}}
"""
NUM_REQUESTS = 20
LOST_S = 5.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    directory = tmp_path_factory.mktemp("stopped")
    (directory / "fleet.yaml").write_text(FLEET)
    with running_platform(directory / "platform", directory / "fleet.yaml") as platform:
        yield platform


async def both_ready(platform: Platform) -> None:
    async with Admin(StateDir(platform.state_dir)) as admin, asyncio.timeout(40):
        while [row.state for row in await admin.replicas()] != [3, 3]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_stopped_replica_costs_its_own_requests_five_seconds_and_others_nothing(platform: Platform) -> None:
    await both_ready(platform)
    stopped = psutil.Process(platform.worker_pids()[0])
    tree = [stopped, *stopped.children(recursive=True)]
    first_text_s: list[float] = []
    created: list[int] = []

    async with platform.async_client() as client:

        async def ask() -> str:
            started, num_created, text = time.monotonic(), 0, ""
            async with client.generate("scripted", [{"role": "user", "content": "hello"}], deadline_s=30.0) as stream:
                async for event in stream:
                    num_created += event.WhichOneof("event") == "created"
                    if event.WhichOneof("event") == "delta":
                        if not text:
                            first_text_s.append(time.monotonic() - started)
                        text += event.delta.text
            created.append(num_created)
            return f"{stream.kind}: {text}"

        assert await ask() == "completed: hello"
        first_text_s.clear()
        for process in tree:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            endings = await asyncio.gather(*(ask() for _ in range(NUM_REQUESTS)))
        finally:
            for process in tree:
                os.kill(process.pid, signal.SIGCONT)
    assert endings == ["completed: hello"] * NUM_REQUESTS
    assert set(created) == {1}
    held_up = [each for each in first_text_s if each >= LOST_S - 1]
    others = [each for each in first_text_s if each < LOST_S - 1]
    assert len(held_up) >= 1, "some went to the stopped one"
    assert len(others) >= NUM_REQUESTS // 2 - 1, "half of them did not, and did not wait"
    assert max(held_up) < 4 * LOST_S, (
        "a busy host takes its time; a replica that nobody misses takes the deadline's 30 s"
    )
