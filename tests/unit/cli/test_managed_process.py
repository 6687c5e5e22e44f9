"""A managed process ends when it is told to, at whatever moment, and is tried again where it could not be started."""

import asyncio
import sys
from pathlib import Path

import pytest

from headrace_cli.platform.process import ManagedProcess

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")
LIMIT_S = 20.0


async def test_a_stop_while_it_is_being_started_ends_it(tmp_path: Path) -> None:
    asked = asyncio.Event()

    def command() -> tuple[str, ...]:
        asked.set()
        return SLEEPER

    process = ManagedProcess("sleeper", command, tmp_path / "log", pytest.fail)
    process.start()
    await asked.wait()
    async with asyncio.timeout(LIMIT_S):
        await process.stop(grace_s=LIMIT_S)


async def test_one_that_could_not_be_started_is_tried_again(tmp_path: Path) -> None:
    tries: list[int] = []
    deaths: list[tuple[str, int]] = []
    started = asyncio.Event()

    def command() -> tuple[str, ...]:
        tries.append(len(tries))
        if len(tries) > 1:
            started.set()
        return SLEEPER if len(tries) > 1 else (str(tmp_path / "absent"),)

    process = ManagedProcess("late", command, tmp_path / "log", pytest.fail, lambda name, n: deaths.append((name, n)))
    process.start()
    async with asyncio.timeout(LIMIT_S):
        await started.wait()
        await process.stop(grace_s=LIMIT_S)
    assert deaths == [("late", 1)]
