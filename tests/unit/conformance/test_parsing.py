"""Bytes to events, and strangers' JSON: whatever comes, the kit itself does not fail."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_conformance import schema
from headrace_conformance.checks.catalog import CHECKS
from headrace_conformance.recording import Event, Recording
from headrace_conformance.sse import SseParser

STREAM = 'data: {"a": "é😀"}\n\n: comment\n\nevent: x\r\ndata: one\r\ndata: two\r\n\r\ndata: [DONE]\n\n'.encode()
NAMES = st.sampled_from(
    [
        "id",
        "choices",
        "delta",
        "content",
        "role",
        "index",
        "finish_reason",
        "usage",
        "error",
        "type",
        "response",
        "logprobs",
        "item",
        "message",
        "output",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SURFACES = ("chat", "completions", "responses", "messages")


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int]) -> None:
    parser, places = SseParser(), sorted({0, *cuts, len(STREAM)})
    found = [event for one, other in pairwise(places) for event in parser.feed(STREAM[one:other])]
    parser.close()
    assert found == [("", '{"a": "é😀"}'), ("x", "one\ntwo"), ("", "[DONE]")]
    assert parser.faults == []


@pytest.mark.parametrize(
    ("stream", "fault"),
    [(b'data: "\xff"\n\n', "not UTF-8"), (b"data: {}\n", "no blank line"), (b"data: {}", "no blank line")],
)
def test_what_no_client_can_read_is_a_fault(stream: bytes, fault: str) -> None:
    parser = SseParser()
    list(parser.feed(stream))
    parser.close()
    assert [fault in one for one in parser.faults] == [True]


@given(st.lists(JSON | st.just("[DONE]"), max_size=5), st.sampled_from(SURFACES))
def test_no_stream_however_strange_breaks_a_check(contents: list[Any], surface: Any) -> None:
    events = tuple(Event(one if one == "[DONE]" else json.dumps(one)) for one in contents)
    request = {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
    recording = Recording("strange", surface, request, events)
    for check in CHECKS:
        if surface in check.surfaces:
            assert check.of(recording).result in ("pass", "fail", "na")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CreateChatCompletionStreamResponse", {"id": 1}),
        ("ListModelsResponse", {"data": []}),
        ("Model", {"id": "m", "object": "thing", "created": 1, "owned_by": "me"}),
        ("ErrorResponse", {"error": {"message": "no"}}),
    ],
)
def test_the_document_refuses_what_it_does_not_know(name: str, value: Any) -> None:
    assert schema.problems(name, value)


def test_every_allowance_is_needed_by_name() -> None:
    assert len(schema.ALLOWANCES) == 8
    with pytest.raises(KeyError):
        schema.problems("NoSuchSchema", {})


def test_every_event_type_of_a_text_response_has_a_schema() -> None:
    for kind in ("response.created", "response.output_text.delta", "response.completed", "response.failed", "error"):
        assert schema.event_schema(kind) is not None
    assert schema.event_schema("response.made_up") is None
