"""The life of an Anthropic /v1/messages stream."""

from typing import Any

from headrace_conformance.checks.check import MESSAGES, Check
from headrace_conformance.lifecycle import TypedStream
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_count, a_text, an_object
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_ENDS = ("message_stop", "error")


def begins(recording: Recording) -> Verdict:
    stream = TypedStream(recording)
    types = [kind for kind in stream.types if kind != "ping"]
    if types[:1] != ["message_start"] or types.count("message_start") != 1:
        return failed(f"begins with {types[:3]}")
    message = an_object(stream.of("message_start")[0].get("message"))
    fine = a_text(message.get("id")) and message.get("role") == "assistant" and message.get("content") == []
    return passed(f"message_start of {message['id']}") if fine else failed(f"message_start has {message}")


def one_end(recording: Recording) -> Verdict:
    types = TypedStream(recording).types
    found = [(at, kind) for at, kind in enumerate(types) if kind in _ENDS]
    if [at for at, _ in found] == [len(types) - 1]:
        return passed(f"ends with {types[-1]}")
    return failed(f"ends {found} in {len(types)} events")


def blocks(recording: Recording) -> Verdict:
    """Blocks open in order 0, 1, …; only the open one gets deltas; a failed message may leave its last one open."""
    current, num_opened, problems = None, 0, []
    stream = TypedStream(recording)
    for at, event in enumerate(stream.events):
        kind, index = event.get("type"), event.get("index")
        if kind == "content_block_start":
            if current is not None or index != num_opened:
                problems.append(f"event {at} opens block {index} while {current} is open and {num_opened} is next")
            current, num_opened = index, num_opened + 1
        elif kind in ("content_block_delta", "content_block_stop"):
            if index != current or current is None:
                problems.append(f"event {at} is {kind} of {index} while {current} is open")
            current = None if kind == "content_block_stop" else current
        elif kind == "message_delta" and current is not None:
            problems.append(f"event {at} is message_delta while block {current} is open")
    return judged(problems[:3], f"{num_opened} blocks, each opened and closed once")


def stop_reason(recording: Recording) -> Verdict:
    stream = TypedStream(recording)
    ends = [a_text(an_object(event.get("delta")).get("stop_reason")) for event in stream.of("message_delta")]
    if "error" in stream.types:
        return failed(f"message_delta with {ends} in a failed message") if any(ends) else passed("none, it failed")
    return passed(ends[0]) if len(ends) == 1 and ends[0] else failed(f"stop reasons {ends}")


def no_empty_delta(recording: Recording) -> Verdict:
    deltas = [an_object(event.get("delta")) for event in TypedStream(recording).of("content_block_delta")]
    empty = [delta for delta in deltas if not any(delta.get(name) for name in _OUTPUT)]
    return judged([f"empty delta {delta}" for delta in empty[:3]], "every delta carries something")


def names_match(recording: Recording) -> Verdict:
    if not recording.framed:
        return na("event names were not recorded")
    types = TypedStream(recording).types
    wrong = [f"event {at} is named {event.name!r} and has type {types[at]!r}"
             for at, event in enumerate(recording.events) if event.name != types[at]]  # fmt: skip
    return judged(wrong[:3], "each event is named after its type")


def usage(recording: Recording) -> Verdict:
    stream = TypedStream(recording)
    if "error" in stream.types or not stream.of("message_delta"):
        return na("the message did not finish")
    starts: list[dict[str, Any]] = [an_object(event.get("message")) for event in stream.of("message_start")]
    given = a_count(an_object(starts[0].get("usage")).get("input_tokens")) if starts else None
    made = [a_count(an_object(event.get("usage")).get("output_tokens")) for event in stream.of("message_delta")]
    if given is None or None in made:
        return failed(f"input_tokens {given}, output_tokens {made}")
    return passed(f"{given} in, {made[-1]} out")


_OUTPUT = ("text", "partial_json", "thinking", "signature", "citation")

CHECKS = (
    Check("messages.begins", "A message begins with one message_start that has an id and no content",
          "clients build the message on it", MESSAGES, begins),
    Check("messages.end", "Exactly one message_stop or error, and it is the last event",
          "a response ends exactly once; message_stop after an error says that the answer is whole", MESSAGES, one_end),
    Check("messages.blocks", "Content blocks open in order, get their deltas while open, and close once",
          "clients index into a list of blocks", MESSAGES, blocks),
    Check("messages.stop-reason", "One stop reason in a finished message, none in a failed one",
          "clients decide by it whether the answer is whole", MESSAGES, stop_reason),
    Check("messages.no-empty-delta", "No delta is empty",
          "empty deltas defeat time-to-first-token", MESSAGES, no_empty_delta),
    Check("messages.names", "Each event is named after its type",
          "clients dispatch by name", MESSAGES, names_match),
    Check("messages.usage", "A finished message says its input and output tokens",
          "bills are made from them", MESSAGES, usage),
)  # fmt: skip
