"""How a stream is written down: events, bytes and headers. Chat and completions, and where it says so all surfaces."""

import re

from headrace_conformance.checks.check import CHUNKED, EVERY, Check
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import parsed
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def json_events(recording: Recording) -> Verdict:
    stream = ChunkStream(recording)
    junk = [
        f"event {at} is {recording.events[at].data[:60]!r}" for at, kind in enumerate(stream.kinds) if kind == "junk"
    ]
    return judged(junk, "every event is a JSON object or [DONE]")


def unnamed_events(recording: Recording) -> Verdict:
    if not recording.framed:
        return na("event names were not recorded")
    named = [f"event {at} is named {event.name!r}" for at, event in enumerate(recording.events) if event.name]
    return judged(named, "no event has a name")


def valid_utf8(recording: Recording) -> Verdict:
    problems = [fault for fault in recording.faults if "UTF-8" in fault]
    for at, event in enumerate(recording.events):
        if _LONE_SURROGATE.search(_all_text(parsed(event.data))):
            problems.append(f"event {at} has half a surrogate pair: {event.data[:120]!r}")
    return judged(problems, "every byte is UTF-8 and no character is cut")


def content_type(recording: Recording) -> Verdict:
    if not recording.headers:
        return na("headers were not recorded")
    found = recording.headers.get("content-type", "")
    return (
        passed(found)
        if found.partition(";")[0].strip() == "text/event-stream"
        else failed(f"content-type is {found!r}")
    )


def unbuffered(recording: Recording) -> Verdict:
    if not recording.headers:
        return na("headers were not recorded")
    headers, problems = recording.headers, []
    for name in ("content-length", "content-encoding"):
        if name in headers:
            problems.append(f"{name}: {headers[name]}")
    if not {"no-cache", "no-store"} & {word.strip() for word in headers.get("cache-control", "").split(",")}:
        problems.append(f"cache-control is {headers.get('cache-control')!r}")
    return judged(problems, "cache-control forbids caching; no length, no encoding")


def closed_in_order(recording: Recording) -> Verdict:
    if recording.ended and not any("blank line" in fault for fault in recording.faults):
        return passed("the transport closed behind the last event")
    return failed("the connection broke" if not recording.ended else recording.faults[-1])


def _all_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "".join(map(_all_text, value.values()))
    return "".join(map(_all_text, value)) if isinstance(value, list) else ""


CHECKS = (
    Check("stream.json", "Every event is a JSON object or [DONE]",
          "clients parse each data line; anything else ends them with a decoding error", CHUNKED, json_events),
    Check("stream.unnamed", "Events of chat and completions carry no name",
          "clients of these streams read data lines only; some drop a named event without a word",
          CHUNKED, unnamed_events),
    Check("stream.closed", "The transport closes in order behind the last event",
          "a cut transport makes a finished answer look like a network fault", EVERY, closed_in_order),
    Check("utf8.bytes", "Every byte of a stream is UTF-8 and no character is cut between events",
          "half a character cannot be put together again by the client", EVERY, valid_utf8),
    Check("headers.content-type", "A stream is text/event-stream",
          "clients and proxies decide by it whether to stream", EVERY, content_type),
    Check("headers.no-buffering", "Nothing in the headers of a stream makes proxies buffer or cache it",
          "a length, a compression or a cachable answer makes proxies hold tokens back", EVERY, unbuffered),
)  # fmt: skip
