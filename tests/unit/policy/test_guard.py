"""Guard rules: asked through a gateway as its own tenant, verdicts kept, and an open or closed end where it is away."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from headrace.v1 import inference_pb2 as inference
from headrace.v1 import inference_pb2_grpc, snapshot_pb2
from headrace_kit import channels
from headrace_kit.errors import HeadraceError
from headrace_policy import guard
from headrace_policy.guard import Guard, GuardAwayError
from tests.unit.policy.office import Office

Open = Callable[..., Office]


class Gateway(inference_pb2_grpc.InferenceServicer):
    """Answers with ``reply``; keeps what it was asked and with which key."""

    def __init__(self) -> None:
        self.reply, self.asked, self.keys = "safe", list[str](), set[str]()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[inference.ResponseEvent]:
        self.asked.append(request.chat.messages[0].content)
        self.keys.add(dict(context.invocation_metadata())["authorization"])
        yield inference.ResponseEvent(created=inference.Created(model=request.model))
        for piece in self.reply:
            yield inference.ResponseEvent(delta=inference.Delta(text=piece))
        if self.reply == "broken":
            yield inference.ResponseEvent(failed=inference.Failed(reason="worker_lost"))
        yield inference.ResponseEvent(completed=inference.Completed())


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, grpc.aio.Channel]]:
    servicer, server = Gateway(), grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = channels.connect(f"127.0.0.1:{port}", token=None)
    yield servicer, channel
    await channel.close()
    await server.stop(0)


def guarded(office: Open, channel: grpc.aio.Channel | None, **fields: Any) -> Office:
    given = {"name": "guard", "detector": "guard", "side": "input", "guard_model": "guard-model", **fields}
    tenant = snapshot_pb2.Tenant(id="acme", rules=["guard"])
    calls = office(tenants=[tenant], rules=[snapshot_pb2.SafetyRule(**given)])
    calls.guard.__init__(channel, lambda: calls.shelf.book.secret, 5.0)  # type: ignore[misc]
    return calls


async def test_an_unsafe_prompt_is_blocked_and_a_verdict_is_kept(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    calls = guarded(office, channel)
    assert calls.who().screen_input
    assert (await calls.admit("a", text="how are you")).admitted
    assert (await calls.admit("b", text="how are you")).admitted
    servicer.reply = "unsafe\nS9"
    with pytest.raises(HeadraceError) as refused:
        await calls.admit("c", text="how to build one")
    assert refused.value.reason == "blocked_input"
    assert servicer.asked == ["how are you", "how to build one"]


async def test_a_flagging_guard_lets_the_prompt_pass(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    servicer.reply = "unsafe"
    assert (await guarded(office, channel, action="flag").admit("a", text="x")).admitted


async def test_its_questions_are_those_of_a_tenant_without_rules(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    calls = guarded(office, channel)
    await calls.admit("a", text="x")
    (bearer,) = servicer.keys
    identity = calls.who(bearer.removeprefix("Bearer "))
    assert (identity.tenant, identity.screen_input) == (guard.TENANT, False)
    with pytest.raises(HeadraceError):
        calls.who(guard.credential(b"another secret"))


@pytest.mark.parametrize("reply", ["broken", "", "maybe safe", "unsafely"])
@pytest.mark.parametrize("opens", [True, False])
async def test_no_verdict_is_open_or_closed_as_the_rule_says(
    office: Open, gateway: Any, reply: str, opens: bool
) -> None:
    servicer, channel = gateway
    servicer.reply = reply
    await away(guarded(office, channel, fail_open=opens), opens)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_guard_that_nobody_serves_is_away(office: Open, opens: bool) -> None:
    await away(guarded(office, None, fail_open=opens), opens)


@pytest.mark.parametrize("opens", [True, False])
async def test_output_that_only_a_guard_could_judge(office: Open, gateway: Any, opens: bool) -> None:
    await away(guarded(office, gateway[1], side="output", fail_open=opens), opens)


async def test_a_gateway_that_is_gone_is_away() -> None:
    channel = channels.connect("127.0.0.1:9", token=None)
    with pytest.raises(GuardAwayError):
        await Guard(channel, lambda: b"x", 0.5).unsafe("m", "text")
    await channel.close()


async def away(calls: Office, opens: bool) -> None:
    if opens:
        assert (await calls.admit("a", text="x")).admitted
        return
    with pytest.raises(HeadraceError) as refused:
        await calls.admit("a", text="x")
    assert (refused.value.reason, refused.value.row.http) == ("policy_unavailable", 503)
