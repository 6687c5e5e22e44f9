"""Revisions change under load: a rolling update that nobody notices, and revisions on trial that fail or are slow."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.v1 import fleet_pb2 as pb
from headrace.v1 import worker_pb2
from headrace_cli.client import AsyncClient, StreamBroken
from headrace_cli.platform.admin import Admin
from headrace_cli.platform.state_dir import StateDir
from headrace_kit.errors import HeadraceError
from tests.integration.platform.running_platform import Platform, running_platform, wait_until

FLEET = """
models: {scripted: {source: scripted, revision: r1}}
pools: {main: {model: scripted, engine: scripted, min: 2}}
classes: {standard: {ttft_ms: 30000, default: true}}
tenants: {dev: {}}
rollout: {drain_s: 20, min_samples: 10}
"""
TRIED = FLEET.replace("revision: r1", "revision: r1, canary: {revision: bad, share: 0.3}").replace(
    "min: 2}", "min: 2}, trial: {model: scripted, engine: scripted, canary: true, launcher: external, min: 0, max: 1}"
)
# A build of the engine in which every sequence fails at its third token.
BROKEN = """
from headrace_worker.execution import script

good = script.Cursor.advance

def advance(self, now):
    self.num_told = getattr(self, "num_told", 0) + 1
    return script.Fail() if self.num_told > 2 else good(self, now)

script.Cursor.advance = advance
"""
# One that answers, and takes a second for each token; the clock is 0 for the known answer alone.
SLOW = """
from headrace_worker.execution import script

good = script.Cursor.advance

def advance(self, now):
    self._interval_s = 1.0 if now else 0.0
    return good(self, now)

script.Cursor.advance = advance
"""
NUM_CLIENTS = 12


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    directory = tmp_path_factory.mktemp("rollout")
    (directory / "fleet.yaml").write_text(FLEET)
    with running_platform(directory / "platform", directory / "fleet.yaml") as platform:
        yield platform


@dataclass
class Load:
    """Clients that ask again as soon as they were answered."""

    client: AsyncClient
    words: str = json.dumps(["a", "!rate(60)", "!repeat(15,x)", "z"])
    text: str = "a" + 15 * "x" + "z"
    endings: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    async def ask(self) -> str:
        try:
            prompt = [{"role": "user", "content": self.words}]
            async with self.client.generate("scripted", prompt, deadline_s=30.0) as stream:
                text = "".join([event.delta.text async for event in stream if event.WhichOneof("event") == "delta"])
                if stream.kind == "completed":
                    assert text == self.text
                return f"{stream.kind}:{getattr(getattr(stream.terminal, stream.kind), 'reason', '')}"
        except StreamBroken:
            return "broken"
        except HeadraceError as error:
            return f"refused:{error.reason}"

    async def run(self) -> None:
        while not self.stopped:
            self.endings[await self.ask()] += 1


@contextlib.asynccontextmanager
async def load(platform: Platform, *said: str) -> AsyncIterator[Load]:
    async with platform.async_client() as client:
        running = Load(client)
        if said:
            running.words, running.text = said
        tasks = [asyncio.create_task(running.run()) for _ in range(NUM_CLIENTS)]
        try:
            yield running
        finally:
            running.stopped = True
            print(running.endings)  # shown when the test fails
            await asyncio.wait_for(asyncio.gather(*tasks), 60.0)


async def eventually(condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = 60.0) -> None:
    """Until an async condition holds."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.05)


async def apply(platform: Platform, text: str) -> None:
    async with Admin(StateDir(platform.state_dir)) as admin:
        answer = await admin.call(admin.stub.Apply, pb.ApplyRequest(fleet_yaml=text, comment="test"))
        assert answer.changed, answer.problems


async def shown(platform: Platform) -> pb.CanaryStatus:
    async with Admin(StateDir(platform.state_dir)) as admin:
        (canary,) = (await admin.call(admin.stub.Show, pb.ShowRequest())).canaries
    assert isinstance(canary, pb.CanaryStatus)
    return canary


async def in_force_everywhere(platform: Platform) -> bool:
    """Every subscriber runs the newest version."""
    async with Admin(StateDir(platform.state_dir)) as admin:
        newest = await admin.snapshot_version()
        answer = await admin.call(admin.stub.ListSubscribers, pb.ListSubscribersRequest())
    return {row.version for row in answer.subscribers if row.service in ("gateway", "router")} == {newest}


async def test_a_rolling_update_under_load_fails_and_hangs_nothing(platform: Platform) -> None:
    async def rolled() -> bool:
        async with Admin(StateDir(platform.state_dir)) as admin:
            replicas = await admin.replicas()
        states = [(row.revision, row.state) for row in replicas]
        return states == [("r2", worker_pb2.REPLICA_STATE_READY)] * 2

    async with load(platform) as running:
        await apply(platform, FLEET.replace("r1", "r2"))
        await eventually(rolled, "all replicas are of the new revision")
        before = running.endings["completed:"]
        await eventually(lambda: _more(running, before + NUM_CLIENTS), "the new replicas answer")
    assert set(running.endings) == {"completed:"}, running.endings
    await apply(platform, FLEET)
    async with load(platform) as back:
        await eventually(lambda: _more(back, NUM_CLIENTS), "the way back holds nobody until a replica is there", 10.0)
    assert set(back.endings) == {"completed:"}, back.endings


async def _more(running: Load, least: int) -> bool:
    return running.endings["completed:"] >= least


@contextlib.contextmanager
def worker_on_trial(platform: Platform, directory: Path, revision: str, code: str) -> Iterator[None]:
    """A replica of the revision on trial, which no launcher started."""
    (directory / "sitecustomize.py").write_text(code)
    state = StateDir(platform.state_dir)
    command = [sys.executable, "-m", "headrace_worker", "--engine", "scripted", "--model", "scripted"]
    command += ["--revision", revision, "--pool", "trial", "--replica-id", "trial-0", "--state-dir", str(directory)]
    command += ["--controlplane", platform.announced("controlplane")["grpc"]]
    command += ["--service-token-file", str(state.service_token)]
    with (directory / "log").open("wb") as log:
        environ = {**os.environ, "PYTHONPATH": str(directory)}
        child = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
    try:
        yield
    finally:
        child.terminate()
        assert child.wait(30) == 0


async def test_a_bad_revision_halts_itself_while_the_good_one_serves_on(platform: Platform, tmp_path: Path) -> None:
    async def ended() -> bool:
        return (await shown(platform)).state == "halted"

    await apply(platform, TRIED)
    with worker_on_trial(platform, tmp_path, "bad", BROKEN):
        async with load(platform) as running:
            await eventually(ended, "the trial is halted")
        await eventually(lambda: in_force_everywhere(platform), "the halt is known")
        assert set(running.endings) == {"completed:", "failed:engine_error"}
        async with load(platform) as after:
            await eventually(lambda: _more(after, 8 * NUM_CLIENTS), "the good revision serves on")
        assert set(after.endings) == {"completed:"}, after.endings
        await _stays_halted(platform)
        async with load(platform) as later:
            await eventually(lambda: _more(later, 4 * NUM_CLIENTS), "it serves on without the bad one")
        assert set(later.endings) == {"completed:"}, later.endings
        await apply(platform, TRIED)
        assert (await shown(platform)).state == "running"


async def _stays_halted(platform: Platform) -> None:
    """It is in history and in `fleet show`, and a new control plane knows it."""
    version = (await shown(platform)).trial
    async with Admin(StateDir(platform.state_dir)) as admin:
        difference = await admin.call(admin.stub.Diff, pb.DiffRequest(fleet_yaml=TRIED))
    assert list(difference.changes) == ["models.scripted.canary: halted -> on trial again"]
    history = await asyncio.to_thread(platform.headrace, "fleet", "history")
    assert "scripted bad: failed attempts: " in history.stdout
    old = platform.announced("controlplane")["pid"]
    platform.kill("controlplane")
    await asyncio.to_thread(wait_until, lambda: platform.announced("controlplane")["pid"] != old, "it is back", 60.0)

    def line() -> str:
        return platform.headrace("fleet", "show").stdout.rstrip().rpartition("\n")[2]

    found = await asyncio.to_thread(wait_until, line, "it answers")
    assert found.startswith("# canary scripted bad: halted (failed attempts: ")
    assert f"on trial since version {version}" in found
    await eventually(lambda: in_force_everywhere(platform), "all have subscribed again")


async def test_a_revision_that_answers_too_slowly_halts_itself(platform: Platform, tmp_path: Path) -> None:
    """No attempt of it fails: what is worse is the share of responses within the class's budget between tokens."""

    async def ended() -> bool:
        return (await shown(platform)).state == "halted"

    budget = TRIED.replace("ttft_ms: 30000", "ttft_ms: 30000, inter_token_ms: 200")
    await apply(platform, budget.replace("revision: bad", "revision: slow"))
    said = json.dumps(["a", "b", "c"]), "abc"
    with worker_on_trial(platform, tmp_path, "slow", SLOW):
        async with load(platform, *said) as running:
            await eventually(ended, "the trial is halted")
        assert set(running.endings) == {"completed:"}, running.endings
        assert (await shown(platform)).reason.startswith("slow responses: ")
        await eventually(lambda: in_force_everywhere(platform), "the halt is known")
        started = time.monotonic()
        async with load(platform, *said) as after:
            await eventually(lambda: _more(after, 8 * NUM_CLIENTS), "the good revision serves on")
        assert set(after.endings) == {"completed:"}, after.endings
        assert time.monotonic() - started < 60
