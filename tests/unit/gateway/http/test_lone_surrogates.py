"""A half character is refused by the path where it stands, at any depth, before anything is made of the body."""

import json
from typing import Any

import pytest
from starlette.requests import Request

from headrace_gateway.http.body import read_object
from headrace_gateway.http.lone_surrogates import place_of_lone_surrogate
from headrace_kit.errors import HeadraceError

HALF = "\ud800"
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", HALF]}}}


def body_of(content: Any) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
        ({"tools": [{"function": {"parameters": SCHEMA}}]}, "tools[0].function.parameters.properties.a.enum[1]"),
        ({"text": {"format": {HALF: 1}}}, "text.format"),
        ({"unknown": [[1, "y\udfff"]]}, "unknown[0][1]"),
        ({HALF: 1}, "body"),
    ],
)
async def test_it_is_refused_where_it_stands(content: Any, path: str) -> None:
    with pytest.raises(HeadraceError, match="lone surrogate") as refused:
        await read_object(body_of(content), 4 << 20)
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", path)


async def test_a_whole_pair_and_an_escape_of_an_escape_are_text() -> None:
    content = {"model": "\U0001f600", "input": "\\ud800", "n": [1, None, True, {"\U0001f600": 1.5}]}
    assert (await read_object(body_of(content), 4 << 20)).content == content


def test_it_is_looked_for_only_where_an_escape_could_be_one() -> None:
    assert place_of_lone_surrogate('{"a":"\\u00e9"}', {"a": HALF}) is None
