"""`headrace route explain` against a real control plane, router and worker."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace_cli.__main__ import main
from headrace_cli.platform.state_dir import StateDir
from tests.integration.control_processes import TOKEN, Process, Site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await made.close()


def state_of(site: Site, plane: Process) -> StateDir:
    """A state directory as `headrace up` leaves it."""
    state = StateDir(site.root / "state")
    state.announce("controlplane").parent.mkdir(parents=True)
    state.announce("controlplane").write_text(json.dumps(plane.addresses))
    state.service_token.write_text(TOKEN)
    state.admin_key.write_text((site.state / "admin_key").read_text())
    return state


async def headrace(state: StateDir, verb: str, *words: str) -> object:
    """The exit code, or the message that the command ended with."""
    with pytest.raises(SystemExit) as left:
        await asyncio.to_thread(main, [verb, "--state-dir", str(state.root), *words])
    return left.value.code


async def test_a_decision_is_explained_with_every_term(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    plane = await site.controlplane()
    await site.admin(plane).ready("scripted-0")
    router = await site.router(plane.grpc)
    decision, state = await site.routes(router).pick(), state_of(site, plane)
    assert await headrace(state, "route", "explain", decision.decision_id) == 0
    shown = capsys.readouterr().out
    assert decision.why in shown
    assert all(word in shown for word in ("r, attempt 1", "scripted-0", "ttft", "inter_token", "memory", "session"))

    assert await headrace(state, "route", "explain", decision.decision_id, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    (candidate,) = record["candidates"]
    assert (record["why"], candidate["picked"]) == (decision.why, True)
    assert candidate["score"] == pytest.approx(sum(candidate["terms"].values()))

    assert "knows decision" in str(await headrace(state, "route", "explain", "nobody's"))
