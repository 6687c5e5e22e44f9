"""What a worker records of its scheduler reproduces every plan of it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.integration.worker_process import Client, script, worker


async def test_a_recording_of_a_worker_is_replayed_plan_for_plan(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text("the run before\n")
    async with worker(tmp_path / "w", "--record", str(file)) as running, Client(running.grpc) as client:
        handles = [await client.submit(script("a", "!err"), n=2), await client.submit(script("a", "bc"))]
        for handle in handles:
            await client.final(handle)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "prompts are in it"
    assert file.with_name("steps.jsonl.1").read_text() == "the run before\n"
    command = [sys.executable, "-m", "headrace_cli", "replay", str(file)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    replayed = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, env=environ
    )
    assert replayed.returncode == 0, replayed.stderr
    moves = [json.loads(line) for line in file.read_text().splitlines()]
    num_plans = sum(move["kind"] == "plan" and move["digest"] != "" for move in moves)
    assert num_plans >= 3
    assert replayed.stdout == f"{num_plans} plans, every one as recorded\n"
