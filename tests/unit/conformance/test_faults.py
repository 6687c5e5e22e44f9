"""A correct server passes every rule; each seeded fault is caught by exactly the rule meant for it."""

from collections.abc import Iterator

import pytest

from headrace_conformance.rule import Rule
from headrace_conformance.rules import recorded
from headrace_conformance.rules.catalog import HTTP_RULES
from headrace_conformance.runner import Outcome, run
from headrace_conformance.target import Options
from tests.unit.conformance.reference.faults import BEHAVIOURS, TRANSFORMS
from tests.unit.conformance.reference.server import API_KEY, ReferenceServer, serving

CAUGHT_BY = {
    "no_terminal": "stream.ends",
    "no_error": "stream.ends",
    "double_done": "stream.done-once",
    "done_after_error": "stream.no-done-after-error",
    "two_errors": "stream.one-error",
    "bare_error": "stream.error-shape",
    "no_role": "stream.role",
    "finish_with_text": "stream.finish-alone",
    "no_finish": "stream.finish-once",
    "finish_twice": "stream.finish-once",
    "behind_finish": "stream.order",
    "one_choice_missing": "stream.choices",
    "empty_deltas": "stream.no-empty-delta",
    "two_ids": "stream.identity",
    "model_changes": "stream.constant",
    "wrong_object": "stream.schema",
    "named_events": "stream.unnamed",
    "junk_event": "stream.json",
    "repeated_delta": "text.exact",
    "whole_text_differs": "text.stream-equals-whole",
    "unseeded": "text.seed",
    "split_characters": "utf8.split-characters",
    "broken_utf8": "utf8.bytes",
    "stop_leaks": "stop.never-shown",
    "held_text_lost": "stop.near-miss",
    "stop_first_choice_only": "stop.every-choice",
    "usage_of_one_choice": "usage.choices",
    "cumulative_usage": "usage.counts",
    "counts_delivered": "usage.stop-string",
    "wrong_total": "usage.sum",
    "usage_unasked": "usage.only-if-asked",
    "usage_beside_finish": "usage.chunk",
    "skewed_logprobs": "logprobs.aligned",
    "positive_logprob": "logprobs.range",
    "limit_off_by_one": "limit.honoured",
    "length_at_the_end": "limit.exact-end",
    "no_request_id": "headers.request-id",
    "any_request_id": "headers.request-id-bounds",
    "content_type": "headers.content-type",
    "cacheable": "headers.no-buffering",
    "held_back": "headers.live",
    "no_key_needed": "errors.no-key",
    "any_key": "errors.wrong-key",
    "any_model": "errors.unknown-model",
    "plain_errors": "errors.shape",
    "complete_after_failure": "errors.after-output",
    "empty_after_failure": "errors.before-output",
    "bare_list": "models.list",
    "nameless": "invalid.messages",
    "takes_bad_n": "invalid.n",
    "takes_bad_seed": "invalid.seed",
    "null_refused": "accept.null",
    "unknown_refused": "accept.shapes",
    "short_ids": "crowd.ids",
    "leftovers": "cancel.every-index",
    "responses_sequence": "responses.sequence",
    "responses_second_terminal": "responses.terminal",
    "responses_error_first": "responses.failed-alone",
    "responses_done_text": "responses.deltas",
    "responses_unnamed": "responses.names",
    "messages_stop_behind_error": "messages.end",
    "messages_block_unopened": "messages.blocks",
    "messages_no_reason": "messages.stop-reason",
}
# They wait on purpose and judge time: the correct server runs them, and the faults that they are for.
WAITING = {"slow.reader", "headers.live", "cancel.every-index", "cancel.crowd", "cancel.whole"}
Server = tuple[ReferenceServer, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    reference = ReferenceServer()
    with serving(reference.app()) as origin:
        yield reference, origin


async def outcomes(server: Server, fault: str, rules: list[Rule]) -> list[Outcome]:
    server[0].fault, server[0].leftover = fault, ""
    return await run(Options(server[1], API_KEY, "scripted"), rules)


def failing(found: list[Outcome]) -> dict[str, str]:
    return {one.rule.id: one.verdict.evidence for one in found if one.verdict.result == "fail"}


async def test_a_correct_server_passes_every_rule(server: Server) -> None:
    found = await outcomes(server, "", list(HTTP_RULES))
    assert {one.rule.id: one.verdict.evidence for one in found if one.verdict.result != "pass"} == {}


def test_every_fault_has_its_rule() -> None:
    assert CAUGHT_BY.keys() == TRANSFORMS.keys() | BEHAVIOURS
    assert set(CAUGHT_BY.values()) <= {rule.id for rule in HTTP_RULES}


@pytest.mark.parametrize("fault", CAUGHT_BY)
async def test_a_fault_is_caught_by_its_rule_and_by_no_check_of_the_recorded_streams(
    server: Server, fault: str
) -> None:
    meant = [rule for rule in HTTP_RULES if rule.id == CAUGHT_BY[fault]]
    others = [rule for rule in recorded.RULES if rule not in meant]
    found = failing(await outcomes(server, fault, [*meant, *others]))
    assert found.keys() == {CAUGHT_BY[fault]}, found


@pytest.mark.slow
@pytest.mark.parametrize("fault", CAUGHT_BY)
async def test_no_other_rule_at_all_sees_a_fault(server: Server, fault: str) -> None:
    rules = [rule for rule in HTTP_RULES if rule.id not in WAITING or rule.id == CAUGHT_BY[fault]]
    found = failing(await outcomes(server, fault, rules))
    assert found.keys() == {CAUGHT_BY[fault]}, found
