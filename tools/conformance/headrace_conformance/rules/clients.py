"""Clients that vanish, dawdle, or come in crowds."""

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.client import Leave, OnEvent
from headrace_conformance.recording import Event, Recording
from headrace_conformance.rule import Rule
from headrace_conformance.rules.needs import scripted
from headrace_conformance.script import rate, repeat, script
from headrace_conformance.sse import SseParser
from headrace_conformance.target import PLAIN, Target
from headrace_conformance.tolerant import a_text
from headrace_conformance.verdict import Verdict, failed, judged, passed

_CROWD = 16
_LINE = "0123456789abcde " * 16
_NUM_LINES = 2000
# A short answer beside a reader who reads nothing: generous to a busy machine, and never reached by a blocked one.
_NEIGHBOUR_S = 10.0


def _leave_at(index: int) -> OnEvent:
    def on_event(at: int, _: Event) -> None:
        if at == index:
            raise Leave

    return on_event


def _id(recording: Recording) -> str:
    return a_text(next(iter(ChunkStream(recording).chunks.values()), {}).get("id"))


async def cut_everywhere(target: Target) -> Verdict:
    """The connection is cut behind event 0, 1, … while the model speaks; each time the next stream has its own text."""
    content = script(rate(100), "one ", "two ", "three ", "four") if target.scripted else PLAIN
    fields: dict[str, Any] = {"max_tokens": 8, "seed": 7}
    full = await target.chat(content, **fields)
    wanted, problems = ChunkStream(full).text(), []
    for index in range(len(full.events)):
        body = target.body(content, **fields)
        cut = await target.client.record("cut", "chat", body, on_event=_leave_at(index))
        after = await target.chat(content, **fields)
        if not wanted.startswith(ChunkStream(cut).text()) or ChunkStream(after).text() != wanted:
            problems.append(f"cut behind event {index}: then {ChunkStream(after).text()!r}, {wanted!r} was due")
    return judged(problems[:3], f"cut behind each of {len(full.events)} events")


async def abandoned_crowd(target: Target) -> Verdict:
    """Many long answers are left behind at once; the next short one must not wait for them."""
    content = script(rate(50), repeat(1000, "x ")) if target.scripted else "Write a very long story."
    body = target.body(content, max_tokens=1000 if target.scripted else 200)
    leaving = [target.client.record("left", "chat", body, on_event=_leave_at(2)) for _ in range(_CROWD)]
    statuses = Counter(recording.status for recording in await asyncio.gather(*leaving))
    started = time.monotonic()
    after = ChunkStream(await target.chat(script("still", " here") if target.scripted else PLAIN, max_tokens=8))
    seconds = time.monotonic() - started
    if not after.text():
        return failed(f"left {dict(statuses)}, then status {after.recording.status}, events {after.kinds}")
    return (
        passed(f"{_CROWD} left, the next one took {seconds:.2f} s")
        if seconds < 10
        else failed(f"{_CROWD} streams of 20 s were left, the next short one took {seconds:.1f} s: they still run")
    )


async def leave_a_whole_answer(target: Target) -> Verdict:
    content = script(rate(50), repeat(500, "x ")) if target.scripted else "Write a very long story."
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await target.whole(content, max_tokens=500 if target.scripted else 200)
    after = await target.whole(script("o", "k") if target.scripted else PLAIN, max_tokens=4)
    return passed("the next one is answered") if after.status == 200 else failed(f"then status {after.status}")


@scripted
async def slow_reader(target: Target) -> Verdict:
    """Nobody reads for two seconds while far more is made than the connection holds."""
    wanted = _LINE * _NUM_LINES
    body = target.body(script(repeat(_NUM_LINES, _LINE)), max_tokens=_NUM_LINES + 1)
    parser, events = SseParser(), list[Event]()
    async with target.client.narrow_stream(body) as got:
        pieces = got.aiter_bytes()
        first = await anext(pieces)
        events += [Event(data, name) for name, data in parser.feed(first)]
        neighbour, seconds = await _timed(target)
        await asyncio.sleep(max(0.0, 2.0 - seconds))
        async for piece in pieces:
            events += [Event(data, name) for name, data in parser.feed(piece)]
    stream = ChunkStream(Recording("slow", "chat", body, tuple(events)))
    if neighbour != "quick" or seconds > _NEIGHBOUR_S:
        return failed(f"beside a slow reader another stream took {seconds:.1f} s and said {neighbour!r}")
    if stream.failed:
        code = stream.errors[0].get("code")
        whole = wanted.startswith(stream.text())
        return (
            passed(f"ended with {code!r}") if whole else failed(f"ended with {code!r} behind a text that is not a part")
        )
    fine = stream.text() == wanted
    return (
        passed(f"{len(wanted)} characters arrived late and whole")
        if fine
        else failed(f"{len(stream.text())} of {len(wanted)} characters, the last event is {stream.kinds[-1]}")
    )


async def _timed(target: Target) -> tuple[str, float]:
    started = time.monotonic()
    text = (await target.play("qu", "ick", max_tokens=4)).text()
    return text, time.monotonic() - started


async def own_ids(target: Target) -> Verdict:
    content = script("same") if target.scripted else PLAIN
    ids = [_id(one) for one in await asyncio.gather(*(target.chat(content, max_tokens=4) for _ in range(_CROWD)))]
    fine = len(set(ids)) == len(ids) and "" not in ids
    return passed(f"{_CROWD} ids") if fine else failed(f"{len(set(ids))} ids for {_CROWD} streams: {ids[:4]}")


@scripted
async def own_text(target: Target) -> Verdict:
    texts = [[f"{who}{part}" for part in "abcde"] for who in range(_CROWD)]
    streams = await asyncio.gather(*(target.play(*parts, max_tokens=8) for parts in texts))
    wrong = [f"{''.join(parts)!r} was due, {stream.text()!r} came"
             for parts, stream in zip(texts, streams, strict=True) if stream.text() != "".join(parts)]  # fmt: skip
    return judged(wrong[:3], f"{_CROWD} streams at once, each with its own text")


async def same_request_id(target: Target) -> Verdict:
    """Two streams at once under one x-request-id."""
    content = script("one", " two") if target.scripted else PLAIN
    body, headers = target.body(content, max_tokens=4, seed=7), {"x-request-id": "the-same"}
    both = await asyncio.gather(*(target.client.record("twin", "chat", body, headers=headers) for _ in range(2)))
    ids, texts = {_id(one) for one in both}, {ChunkStream(one).text() for one in both}
    fine = len(ids) == 2 and len(texts) == 1 and "" not in texts
    return passed("two ids, both whole") if fine else failed(f"ids {ids}, texts {texts}")


RULES = (
    Rule("cancel.every-index", "A connection cut behind any event leaves nothing to the next stream",
         "what a vanished client was owed must not reach anyone else", cut_everywhere, timeout_s=120),
    Rule("cancel.crowd", "A crowd of abandoned streams does not hold up the next request",
         "generations that nobody reads use the capacity of those who wait", abandoned_crowd),
    Rule("cancel.whole", "A client that leaves before a whole answer harms nobody",
         "the server learns of it only by the connection", leave_a_whole_answer),
    Rule("slow.reader", "A reader who dawdles gets all of it or one error, and holds up nobody",
         "decoding serves a batch; it cannot wait for one client", slow_reader),
    Rule("crowd.ids", "Streams at the same time have different ids",
         "two responses under one id are one response to everyone behind", own_ids),
    Rule("crowd.text", "Streams at the same time have their own text",
         "text that a different response produced is the worst answer of all", own_text),
    Rule("crowd.request-id", "The same x-request-id twice is two responses",
         "what a caller chooses cannot be a key", same_request_id),
)  # fmt: skip
