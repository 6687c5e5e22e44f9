"""Safety as gateways meet it: Admit refuses, Screen holds; B162 on every choice of every stream."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import snapshot_pb2
from headrace_kit.errors import HeadraceError
from tests.meters import Moved
from tests.unit.policy.office import Office

Open = Callable[..., Office]
BANNED = snapshot_pb2.SafetyRule(name="fruit", detector="blocklist", values=["persimmon"])
MAIL = snapshot_pb2.SafetyRule(
    name="mail", detector="pii", values=["email"], side="output", action="redact", replacement="[mail]", fail_open=True
)
PASSED, BLOCKED = pb.ScreenVerdict.VERDICT_PASSED, pb.ScreenVerdict.VERDICT_BLOCKED


def screened(office: Open, *rules: snapshot_pb2.SafetyRule) -> Office:
    tenant = snapshot_pb2.Tenant(id="acme", rules=[rule.name for rule in rules])
    return office(tenants=[tenant], rules=rules)


async def screen(calls: Office, *requests: pb.ScreenRequest) -> list[pb.ScreenVerdict]:
    async def sent() -> AsyncIterator[pb.ScreenRequest]:
        for request in requests:
            yield request

    return [verdict async for verdict in calls.servicer.Screen(sent(), None)]


def text(response_id: str, choice: int, offset: int, piece: str, **fields: Any) -> pb.ScreenRequest:
    tenant = "acme" if offset == 0 else ""
    return pb.ScreenRequest(response_id=response_id, choice=choice, offset=offset, text=piece, tenant=tenant, **fields)


async def test_a_prompt_that_breaks_a_rule_reserves_nothing(office: Open) -> None:
    calls = screened(office, BANNED)
    assert calls.who().screen_input
    blocked, passed = (
        Moved("prompts_screened_total", verdict="blocked"),
        Moved("prompts_screened_total", verdict="passed"),
    )
    with pytest.raises(HeadraceError) as refused:
        await calls.admit("r", text="a recipe with Persimmon please")
    assert (refused.value.reason, refused.value.row.http) == ("blocked_input", 400)
    assert "ersimmon" not in refused.value.message and "fruit" in refused.value.message
    assert (await calls.admit("r", text="a recipe please")).admitted
    assert (blocked(), passed()) == (1, 1)


@pytest.mark.parametrize(
    ("rules", "screens", "opens", "asks"),
    [
        ([], False, False, False),
        ([BANNED], True, False, True),
        ([MAIL], True, True, False),
        ([BANNED, MAIL], True, False, True),
    ],
)
async def test_admit_says_whether_output_is_screened(
    office: Open, rules: list[Any], screens: bool, opens: bool, asks: bool
) -> None:
    calls = screened(office, *rules)
    answer = await calls.admit("r")
    assert (answer.screen_output, answer.screen_fail_open, calls.who().screen_input) == (screens, opens, asks)


async def test_choices_and_responses_on_one_stream_do_not_mix(office: Open) -> None:
    calls = screened(office, BANNED)
    counted = [Moved("screened_total", verdict=verdict) for verdict in ("passed", "blocked")]
    verdicts = await screen(
        calls,
        text("a", 0, 0, "I like persi"),
        text("a", 1, 0, "mmon is no word"),
        text("b", 0, 0, "mmon", final=True),
        text("a", 0, 12, "mmon a lot"),
        text("a", 1, 15, "", final=True),
    )
    got = [(v.response_id, v.choice, v.released_up_to, v.verdict, v.rule) for v in verdicts]
    assert got == [
        ("a", 0, 7, 0, ""),
        ("a", 1, 15, 0, ""),
        ("b", 0, 4, PASSED, ""),
        ("a", 0, 7, BLOCKED, "fruit"),
        ("a", 1, 15, PASSED, ""),
    ]
    assert [moved() for moved in counted] == [2, 1]


async def test_redactions_count_code_points_of_the_raw_text(office: Open) -> None:
    calls = screened(office, MAIL)
    verdicts = await screen(
        calls, text("a", 0, 0, "é: user@exa"), text("a", 0, 11, "mple.com, bye"), text("a", 0, 24, "", final=True)
    )
    assert [v.released_up_to for v in verdicts] == [3, 21, 24]
    assert [(r.start, r.end, r.replacement) for v in verdicts for r in v.redactions] == [(3, 19, "[mail]")]


async def test_a_closed_response_is_forgotten(office: Open) -> None:
    calls = screened(office, BANNED)
    verdicts = await screen(
        calls, text("a", 0, 0, "abc"), pb.ScreenRequest(response_id="a", close=True), text("a", 0, 0, "x", final=True)
    )
    assert [v.released_up_to for v in verdicts] == [3, 1]


@pytest.mark.parametrize("broken", [text("a", 0, 5, "x"), pb.ScreenRequest(response_id="a", text="x")])
async def test_text_that_does_not_go_on_where_it_ended_is_refused(office: Open, broken: pb.ScreenRequest) -> None:
    broken.tenant = "acme" if broken.offset else ""
    with pytest.raises(HeadraceError) as refused:
        await screen(screened(office, BANNED), broken)
    assert refused.value.reason == "invalid_argument"


async def test_text_of_a_tenant_that_is_gone_is_not_delivered(office: Open) -> None:
    request = pb.ScreenRequest(response_id="a", tenant="gone", text="anything", final=True)
    verdict = (await screen(screened(office, BANNED), request))[0]
    assert (verdict.released_up_to, verdict.verdict) == (0, BLOCKED)


def test_a_snapshot_with_a_rule_that_cannot_be_is_refused_whole(office: Open) -> None:
    calls = screened(office, BANNED)
    before = calls.shelf.book
    broken = snapshot_pb2.SafetyRule(name="r", detector="regex", values=[r"(a)\1"])
    for rules, named in (([broken], ["r"]), ([BANNED], ["no such rule"]), ([BANNED, BANNED], [])):
        section = snapshot_pb2.PolicySection(
            key_secret=b"x", rules=rules, tenants=[snapshot_pb2.Tenant(id="acme", rules=named)]
        )
        with pytest.raises(ValueError):
            calls.shelf.apply(section)
    assert calls.shelf.book is before


def test_an_unchanged_rule_is_not_compiled_again(office: Open) -> None:
    calls = screened(office, BANNED)
    before = calls.shelf.book.rules["fruit"]
    tenant = snapshot_pb2.Tenant(id="other", rules=["fruit"])
    calls.shelf.apply(snapshot_pb2.PolicySection(key_secret=b"x", rules=[BANNED], tenants=[tenant]))
    assert calls.shelf.book.rules["fruit"] is before
