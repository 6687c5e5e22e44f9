"""JSON that nests too deep is refused by name, wherever it stands, long before Python's own limit is near."""

import json

import pytest
from starlette.requests import Request

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.conversation import check_conversation
from headrace_gateway.http.body import read_object
from headrace_gateway.nesting import MAX_NESTING, nests_too_deep
from headrace_kit.errors import HeadraceError


def nested(depth: int) -> str:
    return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


def body_of(text: str) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": text.encode(), "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.parametrize(("depth", "too_deep"), [(1, False), (MAX_NESTING, False), (MAX_NESTING + 1, True)])
def test_the_bound_is_exact(depth: int, too_deep: bool) -> None:
    arrays = "[" * depth + "]" * depth
    assert nests_too_deep(arrays, json.loads(arrays)) is too_deep
    assert nests_too_deep(nested(depth), json.loads(nested(depth))) is too_deep


def test_many_are_not_deep() -> None:
    text = json.dumps({"messages": [{"content": ["[{" * 500]}] * 500})
    assert not nests_too_deep(text, json.loads(text))


@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 600, 960, 100_000])
async def test_a_deep_body_is_refused(depth: int) -> None:
    with pytest.raises(HeadraceError, match="nested too deeply") as refused:
        await read_object(body_of(f'{{"unknown":{nested(depth)}}}'), 4 << 20)
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", "body")


@pytest.mark.parametrize("depth", [MAX_NESTING + 1, 600, 900])
def test_a_deep_schema_is_refused_over_grpc_too(depth: int) -> None:
    chat = pb.Conversation(messages=[pb.Message(role="user", content="hi")])
    chat.tools.add(name="f", parameters=nested(depth))
    with pytest.raises(HeadraceError, match="nested too deeply") as refused:
        check_conversation(chat, takes_tools=True)
    assert refused.value.field == "tools[0].function.parameters"
