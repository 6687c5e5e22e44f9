"""Kills the processes of a local Headrace at every event of a stream. Each stream ends once, and service returns."""

import asyncio

import httpx

from headrace_conformance.checks import identity, order
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.platform import COMPONENTS, NoPlatform, Platform, kill
from headrace_conformance.recording import Event, Recording
from headrace_conformance.rule import Probe, Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import rate, script
from headrace_conformance.target import Target
from headrace_conformance.verdict import Verdict, failed, judged, na

_WORDS = ("one ", "two ", "three ", "four ")
_TEXT = "".join(_WORDS)
# Role, words, finish reason; behind [DONE] there is nothing to disturb.
_NUM_INDICES = len(_WORDS) + 2
_RECOVERY_S = 60.0
# What ends the tokens ends the response; the others are not on the way of a token.
_MAY_FAIL = {"worker"}
_STREAM_CHECKS = (*identity.CHECKS, *order.CHECKS)


def _kills(component: str) -> Probe:
    @scripted
    async def probe(target: Target) -> Verdict:
        platform, problems, waits = Platform(target.options.state_dir), list[str](), list[float]()
        try:
            await platform.pid(component)
        except NoPlatform as reason:
            return na(str(reason))
        for index in range(_NUM_INDICES):
            try:
                recording, waited = await _kill_at(target, platform, component, index)
            except (NoPlatform, TimeoutError) as error:
                return failed(f"killed at event {index}: {error}")
            waits.append(waited)
            problems += [f"killed at event {index}: {one}" for one in _broken(recording, component)]
        return judged(problems, f"killed at {_NUM_INDICES} events, service was back within {max(waits):.1f} s")

    return probe


async def _kill_at(target: Target, platform: Platform, component: str, index: int) -> tuple[Recording, float]:
    """Kills behind event ``index`` of a stream; returns its recording and the seconds until a new stream is whole."""
    pid = await platform.pid(component)

    def on_event(at: int, _: Event) -> None:
        if at == index:
            kill(pid)

    body = target.body(script(rate(20), *_WORDS), max_tokens=8)
    recording = await target.client.record(f"kill-{component}", "chat", body, on_event=on_event)
    back = await platform.wait_for_another(component, pid, _RECOVERY_S)
    return recording, back + await _until_served(target)


async def _until_served(target: Target) -> float:
    """Seconds until a fresh request is answered whole; refusals and failures in between are the fault's."""
    clock = asyncio.get_running_loop().time
    started, last = clock(), "nothing"
    while clock() - started < _RECOVERY_S:
        try:
            stream = await target.play("back", max_tokens=4)
        except httpx.TransportError as error:
            last = type(error).__name__
        else:
            if stream.text() == "back" and "done" in stream.kinds:
                return clock() - started
            last = f"status {stream.recording.status} {stream.recording.body[:120]!r} {stream.errors[:1]}"
        await asyncio.sleep(0.2)
    raise TimeoutError(f"no request is served {_RECOVERY_S:g} s later; last: {last}")


def _broken(recording: Recording, component: str) -> list[str]:
    """What the stream that lived through it breaks."""
    stream = ChunkStream(recording)
    problems = [f"{check.id}: {verdict.evidence}" for check in _STREAM_CHECKS
                if "chat" in check.surfaces and (verdict := check.of(recording)).result == "fail"]  # fmt: skip
    if recording.status != 200:
        return [f"status {recording.status}"]
    if stream.failed and component not in _MAY_FAIL:
        problems.append(f"the response failed with {stream.errors[0].get('code')!r}, no token passes {component}")
    if not _TEXT.startswith(stream.text()) or (not stream.failed and stream.text() != _TEXT):
        problems.append(f"the text is {stream.text()!r}, {_TEXT!r} was due")
    return problems


_REASON = {
    "worker": "a lost worker is an explicit failure of its responses, never a silent or a second ending",
    "router": "the router decides where a response runs; its tokens do not pass it",
    "policy": "a response that was admitted runs to its end and is settled later",
    "controlplane": "everything keeps serving while the control plane is down",
    "redis": "a reservation in being needs no ledger until it is settled",
}

RULES = tuple(
    Rule(f"control.{component}", f"Killing {component} at any event: the stream ends once, service returns",
         _REASON[component], _kills(component), timeout_s=900)
    for component in COMPONENTS
)  # fmt: skip
