"""Guard rules: asked through a gateway as its own tenant, verdicts kept, and an open or closed end where it is away."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.v1 import inference_pb2 as inference
from headrace.v1 import inference_pb2_grpc, snapshot_pb2
from headrace.v1 import policy_pb2 as pb
from headrace_cli.platform.credentials_dir import CredentialsDir
from headrace_kit import channels
from headrace_kit.errors import HeadraceError
from headrace_policy import guard, guard_channel
from headrace_policy.config import PolicyConfig
from headrace_policy.guard import Guard, GuardAwayError
from tests.meters import Moved
from tests.unit.policy.office import Office

Open = Callable[..., Office]
PASSED, FLAGGED = pb.ScreenVerdict.VERDICT_PASSED, pb.ScreenVerdict.VERDICT_FLAGGED
BLOCKED, LOST = pb.ScreenVerdict.VERDICT_BLOCKED, pb.ScreenVerdict.VERDICT_LOST


class Gateway(inference_pb2_grpc.InferenceServicer):
    """Answers with ``reply``; keeps what it was asked and with which key."""

    def __init__(self) -> None:
        self.reply, self.asked, self.keys = "safe", list[str](), set[str]()
        self.reply_to: Callable[[str], str] = lambda text: self.reply

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[inference.ResponseEvent]:
        self.asked.append(request.chat.messages[0].content)
        self.keys.add(dict(context.invocation_metadata())["authorization"])
        yield inference.ResponseEvent(created=inference.Created(model=request.model))
        for piece in self.reply_to(self.asked[-1]):
            yield inference.ResponseEvent(delta=inference.Delta(text=piece))
        if self.reply == "broken":
            yield inference.ResponseEvent(failed=inference.Failed(reason="worker_lost"))
        yield inference.ResponseEvent(completed=inference.Completed())


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `headrace certs init` makes."""
    folder = tmp_path_factory.mktemp("guard") / "certs"
    list(CredentialsDir(folder).renew(["llm.example.org"], 1, datetime.datetime.now(datetime.UTC)))
    return folder


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
    unjudged = Moved("guard_away_total", outcome="passed" if opens else "refused")
    await away(guarded(office, None, fail_open=opens), opens)
    assert unjudged() == 1


@pytest.mark.parametrize("opens", [True, False])
async def test_output_that_only_a_guard_could_judge_where_none_is_configured(office: Open, opens: bool) -> None:
    await away(guarded(office, None, side="output", fail_open=opens), opens)


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


async def screened(calls: Office, *pieces: str, ends: bool = True) -> list[pb.ScreenVerdict]:
    """The verdicts on one choice, each piece sent when there was an answer to the one before."""
    answers: asyncio.Queue[None] = asyncio.Queue()

    async def sent() -> AsyncIterator[pb.ScreenRequest]:
        offset = 0
        for i, piece in enumerate(pieces):
            final = ends and i == len(pieces) - 1
            tenant = "acme" if i == 0 else ""
            yield pb.ScreenRequest(response_id="r", offset=offset, text=piece, tenant=tenant, final=final)
            offset += len(piece)
            while (verdicts[-1].released_up_to if verdicts else 0) < offset and not final:
                await answers.get()
                if verdicts[-1].verdict in (BLOCKED, LOST):
                    return

    verdicts: list[pb.ScreenVerdict] = []
    async for verdict in calls.servicer.Screen(sent(), None):
        verdicts.append(verdict)
        answers.put_nowait(None)
    return verdicts


def last(verdicts: list[pb.ScreenVerdict]) -> tuple[int, int, str]:
    return verdicts[-1].released_up_to, verdicts[-1].verdict, verdicts[-1].rule


async def test_output_is_shown_window_by_window_as_the_guard_clears_it(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    calls = guarded(office, channel, side="output")
    assert (await calls.admit("r")).screen_output
    verdicts = await screened(calls, "so far ", "so good", "", ends=True)
    assert last(verdicts) == (14, PASSED, "")
    assert servicer.asked == ["so far ", "so far so good"]
    assert 7 in [verdict.released_up_to for verdict in verdicts]


async def test_output_that_becomes_unsafe_ends_with_what_was_cleared(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    servicer.reply_to = lambda text: "unsafe\nS2" if "bomb" in text else "safe"
    verdicts = await screened(guarded(office, channel, side="output"), "how to make a ", "bomb", " at home")
    assert last(verdicts) == (14, BLOCKED, "guard")


async def test_output_is_flagged_and_shown_where_the_rule_only_flags(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    servicer.reply = "unsafe"
    verdicts = await screened(guarded(office, channel, side="output", action="flag"), "odd")
    assert last(verdicts) == (3, FLAGGED, "guard")


@pytest.mark.parametrize(("opens", "ending"), [(True, (4, PASSED, "")), (False, (0, LOST, "guard"))])
async def test_a_guard_that_is_away_in_mid_stream(office: Open, gateway: Any, opens: bool, ending: Any) -> None:
    servicer, channel = gateway
    servicer.reply = "broken"
    calls = guarded(office, channel, side="output", fail_open=opens)
    assert (await calls.admit("r")).screen_fail_open is opens
    assert last(await screened(calls, "text")) == ending


async def test_the_same_output_is_asked_about_once(office: Open, gateway: Any) -> None:
    servicer, channel = gateway
    calls = guarded(office, channel, side="output")
    for _ in range(3):
        assert last(await screened(calls, "the same")) == (8, PASSED, "")
    assert servicer.asked == ["the same"]


async def test_a_closed_response_is_not_asked_about_any_more(office: Open, gateway: Any) -> None:
    async def sent() -> AsyncIterator[pb.ScreenRequest]:
        yield pb.ScreenRequest(response_id="r", text="text", tenant="acme")
        yield pb.ScreenRequest(response_id="r", close=True)

    servicer, channel = gateway
    verdicts = [one async for one in guarded(office, channel, side="output").servicer.Screen(sent(), None)]
    assert [verdict.released_up_to for verdict in verdicts] == [0] and servicer.asked == []


def config_of(certs: Path, target: str, **fields: Any) -> PolicyConfig:
    pair: dict[str, Any] = {
        "tls_ca": certs / "ca.pem",
        "tls_cert": certs / "policy.pem",
        "tls_key": certs / "policy-key.pem",
    }
    needed: dict[str, Any] = {
        "service_token_file": certs,
        "state_dir": certs,
        "controlplane": "x",
        "redis": "unix:///x",
    }
    return PolicyConfig(**needed, **pair, guard_gateway=target, **fields)


@pytest.mark.parametrize("asks_who_calls", [False, True])
@pytest.mark.parametrize(
    ("known", "mutual", "name"),
    [(True, True, "llm.example.org"), (True, False, "llm.example.org"), (False, False, ""), (True, False, "other")],
)
async def test_a_gateway_behind_tls(certs: Path, asks_who_calls: bool, known: bool, mutual: bool, name: str) -> None:
    """It is asked if it proves its name, and if we prove ours where it wants that; else the guard is away."""
    pair = ((certs / "public-key.pem").read_bytes(), (certs / "public.pem").read_bytes())
    ca = (certs / "ca.pem").read_bytes() if asks_who_calls else None
    servicer, server = Gateway(), grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], ca, asks_who_calls))
    await server.start()
    fields: dict[str, Any] = {"guard_ca": certs / "ca.pem", "guard_name": name, "guard_mutual": mutual} if known else {}
    channel = guard_channel.connect(config_of(certs, f"127.0.0.1:{port}", **fields))
    asked = Guard(channel, lambda: b"x", 2.0).unsafe("m", "text")
    try:
        if name == "llm.example.org" and (mutual or not asks_who_calls):
            assert await asked is False and servicer.asked == ["text"]
        else:
            with pytest.raises(GuardAwayError):
                await asked
    finally:
        assert channel is not None
        await channel.close()
        await server.stop(0)


@pytest.mark.parametrize(
    "fields",
    [
        {"guard_gateway": None, "guard_ca": Path("x")},
        {"guard_gateway": "x", "guard_name": "y"},
        {"guard_gateway": "x", "guard_mutual": True},
    ],
)
def test_half_of_a_way_to_the_gateway_is_refused_at_start(fields: dict[str, Any]) -> None:
    needed: dict[str, Any] = {
        "service_token_file": Path(),
        "state_dir": Path(),
        "controlplane": "x",
        "redis": "unix:///x",
    }
    with pytest.raises(ValueError, match="guard_"):
        PolicyConfig(**needed, **fields)
