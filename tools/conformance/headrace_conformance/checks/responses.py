"""The life of a /v1/responses stream."""

from collections import defaultdict
from typing import Any

from headrace_conformance import schema
from headrace_conformance.checks.check import RESPONSES, Check
from headrace_conformance.lifecycle import TypedStream
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_count, a_list, a_text, an_object
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

TERMINALS = ("response.completed", "response.incomplete", "response.failed")
_STATUS = {"response.created": "in_progress", "response.in_progress": "in_progress",
           "response.completed": "completed", "response.incomplete": "incomplete",
           "response.failed": "failed"}  # fmt: skip
# What opens and what closes: a delta stands between the two of its kind.
_PAIRS = (
    ("response.output_item.added", "response.output_item.done"),
    ("response.content_part.added", "response.content_part.done"),
)
_DELTAS = {
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done", "arguments"),
}


def sequence(recording: Recording) -> Verdict:
    numbers = [event.get("sequence_number") for event in TypedStream(recording).events]
    numbered = [(at, number) for at, number in enumerate(numbers) if number != at]
    return judged([f"event {at} has number {number}" for at, number in numbered[:3]], f"0 to {len(numbers) - 1}")


def begins(recording: Recording) -> Verdict:
    types = TypedStream(recording).types
    opening = ["response.created", "response.in_progress"]
    if types[:2] != opening or types.count(opening[0]) + types.count(opening[1]) != 2:
        return failed(f"begins with {types[:3]}")
    return passed("created, then in_progress, once each")


def one_terminal(recording: Recording) -> Verdict:
    types = TypedStream(recording).types
    found = [(at, kind) for at, kind in enumerate(types) if kind in TERMINALS]
    if [at for at, _ in found] == [len(types) - 1]:
        return passed(f"ends with {types[-1]}")
    return failed(f"terminals {found} in {len(types)} events")


def brackets(recording: Recording) -> Verdict:
    """Items and parts open before their deltas and close once; a failed response may leave them open."""
    stream, problems = TypedStream(recording), []
    for opening, closing in _PAIRS:
        opened = [_place(event) for event in stream.of(opening)]
        closed = [_place(event) for event in stream.of(closing)]
        if len(set(opened)) != len(opened) or len(set(closed)) != len(closed) or set(closed) - set(opened):
            problems.append(f"{opening} {opened}, {closing} {closed}")
        elif set(opened) != set(closed) and "response.failed" not in stream.types:
            problems.append(f"{opening} {opened} but {closing} {closed}")
        elif (first := stream.first(closing)) is not None and first < (stream.first(opening) or 0):
            problems.append(f"{closing} before {opening}")
    first_delta, first_item = stream.first(*_DELTAS), stream.first("response.output_item.added")
    if first_delta is not None and (first_item is None or first_delta < first_item):
        problems.append("a delta stands before its item")
    return judged(problems, "each item and part opens once and closes once")


def deltas_add_up(recording: Recording) -> Verdict:
    stream, problems = TypedStream(recording), []
    for delta, (done, field) in _DELTAS.items():
        pieces: dict[Any, str] = defaultdict(str)
        for event in stream.of(delta):
            pieces[_place(event)] += a_text(event.get("delta"))
        for event in stream.of(done):
            if pieces[_place(event)] != event.get(field):
                problems.append(f"{done} says {event.get(field)!r}, its deltas say {pieces[_place(event)]!r}")
    found = [kind for kind in _DELTAS if kind in stream.types]
    return judged(problems, f"{', '.join(found)} add up") if found else na("no delta")


def final_text(recording: Recording) -> Verdict:
    stream = TypedStream(recording)
    end = next((event for event in stream.events if event.get("type") in TERMINALS[:2]), None)
    if end is None:
        return na("no response.completed or response.incomplete")
    items = map(an_object, a_list(an_object(end.get("response")).get("output")))
    parts = [an_object(part) for item in items for part in a_list(item.get("content"))]
    final = "".join(a_text(part.get("text")) for part in parts if part.get("type") == "output_text")
    streamed = "".join(a_text(event.get("delta")) for event in stream.of("response.output_text.delta"))
    return (
        passed("the final object has the streamed text")
        if final == streamed
        else failed(f"streamed {streamed[:80]!r}, the final object has {final[:80]!r}")
    )


def one_identity(recording: Recording) -> Verdict:
    responses = [an_object(event.get("response")) for event in TypedStream(recording).events if "response" in event]
    ids = {a_text(one.get("id")) for one in responses}
    return passed(next(iter(ids))) if len(ids) == 1 and "" not in ids else failed(f"ids: {sorted(ids)}")


def status_matches(recording: Recording) -> Verdict:
    problems = [
        f"{event['type']} has status {an_object(event.get('response')).get('status')!r}"
        for event in TypedStream(recording).events
        if event.get("type") in _STATUS and an_object(event.get("response")).get("status") != _STATUS[event["type"]]
    ]
    return judged(problems, "each response object has the status of its event")


def names_match(recording: Recording) -> Verdict:
    if not recording.framed:
        return na("event names were not recorded")
    types = TypedStream(recording).types
    wrong = [f"event {at} is named {event.name!r} and has type {types[at]!r}"
             for at, event in enumerate(recording.events) if event.name != types[at]]  # fmt: skip
    return judged(wrong[:3], "each event is named after its type")


def no_error_before_failed(recording: Recording) -> Verdict:
    types = TypedStream(recording).types
    if "response.failed" not in types:
        return na("the response did not fail")
    return failed("an error event stands before response.failed") if "error" in types else passed("one response.failed")


def no_empty_delta(recording: Recording) -> Verdict:
    stream = TypedStream(recording)
    empty = [at for at, event in enumerate(stream.events) if event.get("type") in _DELTAS and not event.get("delta")]
    return judged([f"event {at} has an empty delta" for at in empty[:3]], "every delta carries something")


def usage_adds_up(recording: Recording) -> Verdict:
    ends = [event for event in TypedStream(recording).events if event.get("type") in TERMINALS[:2]]
    if not ends:
        return na("no response.completed or response.incomplete")
    usage = an_object(an_object(ends[0].get("response")).get("usage"))
    given, made, total = (a_count(usage.get(name)) for name in ("input_tokens", "output_tokens", "total_tokens"))
    fine = given is not None and made is not None and total == given + made
    return passed(f"{given} + {made} = {total}") if fine else failed(f"usage is {usage}")


def fits_schema(recording: Recording) -> Verdict:
    for at, event in enumerate(TypedStream(recording).events):
        name = schema.event_schema(a_text(event.get("type")))
        if name is None:
            return failed(f"event {at} has type {event.get('type')!r}, which the document does not know")
        if problems := schema.problems(name, event):
            return failed(f"event {at} against {name}: " + "; ".join(problems))
    return passed("every event fits its schema")


def _place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event.get("output_index"), event.get("content_index")


CHECKS = (
    Check("responses.sequence", "sequence_number runs from 0 without gaps",
          "clients find lost events by it", RESPONSES, sequence),
    Check("responses.begins", "A response begins with created and in_progress, once each",
          "clients open the response at the first and refuse anything before it", RESPONSES, begins),
    Check("responses.terminal", "Exactly one terminal, and it is the last event",
          "a response ends exactly once", RESPONSES, one_terminal),
    Check("responses.brackets", "Items and parts open before their deltas and close once",
          "clients keep a tree of items; what is not open cannot grow", RESPONSES, brackets),
    Check("responses.deltas", "The done events say what the deltas said",
          "clients may use either", RESPONSES, deltas_add_up),
    Check("responses.final", "The final object has the streamed text",
          "whoever keeps only the final object must have the same answer", RESPONSES, final_text),
    Check("responses.identity", "All response objects of a stream carry one id",
          "an id that changes cannot be billed, traced or cancelled", RESPONSES, one_identity),
    Check("responses.status", "Each response object has the status of its event",
          "clients decide by either", RESPONSES, status_matches),
    Check("responses.names", "Each event is named after its type",
          "EventSource clients dispatch by name", RESPONSES, names_match),
    Check("responses.failed-alone", "No error event stands before response.failed",
          "a client that raises on the first one never sees the terminal", RESPONSES, no_error_before_failed),
    Check("responses.no-empty-delta", "No delta is empty",
          "empty deltas defeat time-to-first-token", RESPONSES, no_empty_delta),
    Check("responses.usage", "The usage of a finished response adds up",
          "bills are made from it", RESPONSES, usage_adds_up),
    Check("responses.schema", "Every event fits the OpenAI OpenAPI document",
          "generated clients reject what their document does not know", RESPONSES, fits_schema),
)  # fmt: skip
