"""What policy is shown of a prompt: all that its writer put into it, whatever it came as."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import policy_pb2, snapshot_pb2
from headrace_gateway.catalog import ServedModel
from headrace_gateway.prepare import Preparer
from headrace_gateway.text.prompt import PromptEncoder
from headrace_kit.errors import HeadraceError
from tests.unit.gateway.text.toy_models import byte_level, encoder


async def shown(request: pb.GenerateRequest, model: PromptEncoder | None = None, *, screened: bool = True) -> str:
    served = ServedModel(snapshot_pb2.ModelEntry(name="m"), model or encoder("scripted"))
    catalog: Any = SimpleNamespace(
        find=lambda name: served, chain_root=lambda *_: b"root", is_statistical=lambda name: False, classes={}
    )
    identity = policy_pb2.Identity(tenant="t", screen_input=screened)
    return (await Preparer(catalog, 10**6).prepare(request, identity, None)).prompt_text


async def test_a_prompt_of_tokens_is_read_as_its_text() -> None:
    ids = list(b"the forbidden word")
    assert await shown(pb.GenerateRequest(model="m", tokens=pb.TokenIds(ids=ids))) == "the forbidden word"


async def test_an_id_that_is_no_token_is_refused_by_name() -> None:
    """Vocabularies are padded: the engine would take it, and nobody knows what it says."""
    card = byte_level()
    padded = PromptEncoder(replace(card, vocab_size=card.vocab_size + 1))
    request = pb.GenerateRequest(model="m", tokens=pb.TokenIds(ids=[card.vocab_size]))
    with pytest.raises(HeadraceError) as refused:
        await shown(request, padded)
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", "prompt")


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_all_that_a_template_may_show_is_read(choice: str) -> None:
    call = pb.ToolCall(id="c", name="look_up", arguments='{"what": ["the \\u0066orbidden word"]}')
    tool = pb.Tool(name="look_up", description="described", parameters='{"properties": {"named": {"title": "t"}}}')
    messages = [
        pb.Message(role="user", name="somebody", content="asked"),
        pb.Message(role="assistant", tool_calls=[call]),
        pb.Message(role="tool", content="answered", tool_call_id="c"),
    ]
    chat = pb.Conversation(messages=messages, tools=[tool], tool_choice=choice)
    said = ["somebody", "asked", "look_up", "what", "the forbidden word", "answered"]
    tools = ["look_up", "described", "properties", "named", "title", "t"] if choice == "auto" else []
    assert (await shown(pb.GenerateRequest(model="m", chat=chat))).split("\n") == said + tools


async def test_who_is_not_screened_shows_nothing() -> None:
    assert await shown(pb.GenerateRequest(model="m", text="hi"), screened=False) == ""
