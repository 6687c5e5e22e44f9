"""The calls of gateways against a real Redis: B50, B51, B62, B64, idempotence, and answers to bad input."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace_kit.errors import HeadraceError
from headrace_policy import redis_schema
from tests.meters import Moved
from tests.unit.policy.fakes import limit, settlement
from tests.unit.policy.office import Office

Open = Callable[..., Office]
SWEEP, ORPHAN = pb.SETTLEMENT_SOURCE_SWEEP, pb.SETTLEMENT_SOURCE_ORPHAN


async def test_five_racing_requests_take_the_one_place_there_is(office: Open) -> None:
    calls = office(limit("tpm", 100))
    answers = await asyncio.gather(*(calls.admit(f"r{i}") for i in range(5)))
    assert [answer.reason for answer in answers if not answer.admitted] == ["tpm"] * 4
    first = next(answer for answer in answers if answer.admitted)
    assert await calls.settle(first.reservation, "completed", 20) == "applied"
    assert await calls.level("tpm") == pytest.approx(28, abs=1)
    assert (await calls.admit("next")).admitted
    assert await calls.level("tpm") == pytest.approx(86, abs=1)
    late = await calls.admit("late")
    assert (late.admitted, late.reason, late.limit) == (False, "tpm", "tpm/tenant")


async def test_a_refusal_for_one_limit_consumes_nothing_of_another(office: Open) -> None:
    calls = office(limit("rpm", 2), limit("concurrency", 1))
    first = await calls.admit("a")
    assert first.admitted
    second = await calls.admit("b")
    assert (second.admitted, second.reason) == (False, "concurrency")
    assert await calls.level("rpm") == pytest.approx(1, abs=0.1)
    await calls.settle(first.reservation)
    third = await calls.admit("c")
    assert third.admitted
    assert await calls.level("rpm") == pytest.approx(2, abs=0.1)
    await calls.settle(third.reservation)
    assert (await calls.admit("d")).reason == "rpm"


async def test_what_was_really_used_stays_and_the_rest_returns(office: Open) -> None:
    calls = office(limit("tokens_per_day", 1000))
    answer = await calls.admit("r", 22, 10)
    assert await calls.level("tokens_per_day") == pytest.approx(32, abs=0.1)
    await calls.settle(answer.reservation, "completed", 3)
    assert await calls.level("tokens_per_day") == pytest.approx(25, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "num_tokens", "num_requests"), [("completed", 12, 1), ("cancelled", 12, 1), ("failed", 0, 1)]
)
async def test_how_a_response_ended_decides_what_it_is_billed(
    office: Open, kind: str, num_tokens: int, num_requests: int
) -> None:
    calls = office(limit("tokens_per_day", 1000), limit("rpm", 60_000))
    answer = await calls.admit("r")
    await calls.settle(answer.reservation, kind, 4)
    assert await calls.level("tokens_per_day") == pytest.approx(num_tokens, abs=0.1)
    row = (await calls.usage())[0]
    assert (row.settlement.num_output_tokens, row.correction) == (4, False)


async def test_a_response_that_never_was_created_gives_everything_back(office: Open) -> None:
    calls = office(limit("tpm", 6000), limit("rpm", 60), limit("concurrency", 3))
    answer = await calls.admit("r")
    assert await calls.settle(answer.reservation, created=False) == "applied"
    assert [await calls.level(name) for name in ("tpm", "rpm", "concurrency")] == [0, 0, 0]


async def test_every_call_may_be_repeated(office: Open) -> None:
    calls = office(limit("tokens_per_day", 1000), limit("concurrency", 5))
    settled = [Moved("settlements_total", state=state) for state in ("applied", "duplicate")]
    renewed = [Moved("renewals_total", state=state) for state in ("renewed", "settled")]
    first, again = await calls.admit("r"), await calls.admit("r")
    assert again.admitted and again.reservation == first.reservation
    assert await calls.level("tokens_per_day") == pytest.approx(58, abs=0.1)
    assert await calls.renew(first.reservation) == ["renewed"]
    assert [await calls.settle(first.reservation, "completed", 2) for _ in range(3)] == [
        "applied",
        "duplicate",
        "duplicate",
    ]
    assert await calls.renew(first.reservation) == ["settled"]
    assert ([moved() for moved in settled], [moved() for moved in renewed]) == ([1, 2], [1, 1])
    assert await calls.level("tokens_per_day") == pytest.approx(10, abs=0.1)
    assert len(await calls.usage()) == 1


async def test_a_settlement_of_an_unknown_id_charges_what_it_carries_and_refuses_a_late_admit(office: Open) -> None:
    calls = office(limit("tokens_per_day", 1000))
    assert await calls.settle(calls.ask("r"), "completed", 4) == "applied"
    assert await calls.level("tokens_per_day") == pytest.approx(12, abs=0.1)
    with pytest.raises(HeadraceError) as late:
        await calls.admit("r")
    assert late.value.row.http == 503
    assert await calls.level("tokens_per_day") == pytest.approx(12, abs=0.1)


async def test_a_stronger_source_corrects_a_weaker_one_with_one_row(office: Open) -> None:
    calls = office(limit("tokens_per_day", 1000))
    answer = await calls.admit("r")
    assert await calls.settle(answer.reservation, "failed", source=SWEEP) == "applied"
    assert await calls.settle(answer.reservation, "cancelled", 7, source=ORPHAN) == "corrected"
    assert await calls.level("tokens_per_day") == pytest.approx(15, abs=0.1)
    assert await calls.settle(answer.reservation, "completed", 3) == "corrected"
    assert await calls.level("tokens_per_day") == pytest.approx(11, abs=0.1)
    assert await calls.settle(answer.reservation, "failed", source=SWEEP) == "duplicate"
    assert [row.correction for row in await calls.usage()] == [False, True, True]


async def test_a_retry_names_a_failed_response_of_the_same_tenant(office: Open) -> None:
    calls = office()
    failed, fine = await calls.admit("failed"), await calls.admit("fine")
    await calls.settle(failed.reservation, "failed")
    await calls.settle(fine.reservation, "completed")
    assert (await calls.admit("again", retry_of="failed")).admitted
    for named in ("fine", "nowhere", "again"):
        with pytest.raises(HeadraceError) as refused:
            await calls.admit(f"of {named}", retry_of=named)
        assert (refused.value.reason, refused.value.field) == ("invalid_retry_of", "retry_of")


async def test_a_tenant_without_limits_still_has_a_reservation_and_one_row(office: Open) -> None:
    calls = office()
    answer = await calls.admit("r", 1_000_000, 1_000_000, 8)
    assert answer.admitted and answer.lease_ms == 30_000 and not answer.reservation.charges
    assert await calls.renew(answer.reservation) == ["renewed"]
    await calls.settle(answer.reservation, "completed", 5)
    assert [row.settlement.reservation.response_id for row in await calls.usage()] == ["r"]


async def test_cancelled_streams_are_rows_with_their_prompt(office: Open) -> None:
    calls = office()
    for i in range(5):
        answer = await calls.admit(f"r{i}", 602, 100)
        await calls.settle(answer.reservation, "cancelled", 3 + i)
    rows = [row.settlement for row in await calls.usage()]
    assert sum(row.num_prompt_tokens for row in rows) == 3010
    assert sum(row.num_output_tokens for row in rows) == 3 + 4 + 5 + 6 + 7


async def test_prices_of_the_admission_are_those_of_the_settlement(office: Open) -> None:
    price = {"prompt_per_million": 10.0, "cached_per_million": 1.0, "output_per_million": 100.0}
    calls = office(limit("spend_per_day", 1.0), prices=[{"price": price}])
    answer = await calls.admit("r", 1000, 900)
    assert answer.price.output_per_million == 100
    assert await calls.level("spend_per_day") == pytest.approx(0.1, abs=1e-3)
    assert (await calls.admit("s", 1000, 9500)).reason == "spend"
    dearer = office(limit("spend_per_day", 1.0), prices=[{"price": {"output_per_million": 1e6}}])
    closed = await dearer.servicer.Settle(settlement(answer.reservation, "completed", 10, num_cached_tokens=500), None)
    assert closed.cost == pytest.approx((500 * 10 + 500 * 1 + 10 * 100) / 1e6)


async def test_no_key_of_the_ledger_lives_for_ever(office: Open, redis_process: Any) -> None:
    calls = office(limit("tpm", 6000), limit("rpm", 60), limit("concurrency", 3), limit("tokens_per_day", 10**6))
    answer = await calls.admit("r")
    await calls.admit("open")
    await calls.renew(answer.reservation)
    await calls.settle(answer.reservation, "completed", 3)
    with redis_process.client() as client:
        keys = list(client.scan_iter())
        assert keys and all(client.pttl(key) > 0 for key in keys), "B54"
        assert {key for key in keys if b"{acme}" not in key} == {redis_schema.KEY.encode()}, "B59: one hash tag"


@pytest.mark.parametrize("edit", ["id", "tenant", "model", "charge", "kind", "source"])
async def test_bad_input_names_its_field_and_changes_nothing(office: Open, edit: str) -> None:
    calls = office(limit("tpm", 6000))
    request = settlement(calls.ask("r"), "completed", 3)
    held = request.reservation
    match edit:
        case "id":
            held.response_id = "x" * 200
        case "tenant":
            held.identity.tenant = "a{b}"
        case "model":
            held.model = ""
        case "charge":
            held.charges.add(limit="nonsense", scope="tenant")
        case "kind":
            request.ClearField("kind")
        case _:
            request.ClearField("source")
    with pytest.raises(HeadraceError) as refused:
        await calls.servicer.Settle(request, None)
    assert refused.value.reason == "invalid_argument" and refused.value.field
    assert await calls.level("tpm") == 0
