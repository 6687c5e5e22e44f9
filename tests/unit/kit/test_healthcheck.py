"""The probe of a container: exit 0 if and only if the service at the target serves."""

import asyncio
import subprocess
import sys

import pytest

from headrace_kit.health import Health
from tests.unit.kit.fakes import serving


async def probe(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "headrace_kit.healthcheck", *flags]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


async def test_a_ready_service_is_healthy_and_needs_no_token() -> None:
    async with serving() as address:
        assert await probe(f"--target={address}") == (0, "")


async def test_one_that_starts_or_drains_is_not() -> None:
    health = Health()
    health.add("snapshot")
    async with serving(health=health) as address:
        assert await probe(f"--target={address}") == (1, "NOT_SERVING\n")


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--target=127.0.0.1:1"], 1, "UNAVAILABLE"),
        ([], 2, "--target (or HEADRACE_HEALTHCHECK_TARGET) is required"),
        (["--target=127.0.0.1:1", "--tls-ca=/nowhere"], 1, "/nowhere"),
    ],
)
async def test_what_cannot_be_asked_is_not_healthy(flags: list[str], code: int, words: str) -> None:
    got, said = await probe(*flags)
    assert got == code and words in said
