"""The gRPC checks over recorded calls: a good call breaks none, and each mistake is seen by exactly its check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace_conformance.checks.grpc_events import CHECKS, Call, GrpcEvent

USAGE = {"reason": "", "num_prompt_tokens": 22, "num_output_tokens": 6}


def call(*events: tuple[str, dict[str, Any]], status: str = "OK", n: int = 2) -> Call:
    numbered = (GrpcEvent("resp_1", at, kind, fields) for at, (kind, fields) in enumerate(events))
    return Call("call", tuple(numbered), status, n)


def delta(choice: int, text: str) -> tuple[str, dict[str, Any]]:
    return "delta", {"choice": choice, "text": text, "reasoning": "", "tool_call": False}


def finished(choice: int, reason: str = "stop") -> tuple[str, dict[str, Any]]:
    return "choice_finished", {"choice": choice, "reason": reason, "num_output_tokens": 3}


GOOD: tuple[tuple[str, dict[str, Any]], ...] = (
        ("created", {}), delta(0, "h"), delta(1, "h"), delta(0, "i"), delta(1, "i"), finished(0), finished(1),
        ("completed", USAGE))  # fmt: skip
REFUSED = Call("refused", (), "NOT_FOUND")
LEFT = replace(call(*GOOD[:3], status="CANCELLED"), left=True)
FAILED = call(*GOOD[:3], ("failed", {**USAGE, "reason": "engine_error"}))
CUT = call(*GOOD[:5], finished(0), finished(1, "length"), ("incomplete", {**USAGE, "reason": "length"}))


def renumbered(change: Callable[[list[tuple[str, dict[str, Any]]]], object], **options: Any) -> Call:
    events = list(GOOD)
    change(events)
    return call(*events, **options)


def with_event(at: int, **fields: Any) -> Call:
    good = call(*GOOD)
    events = [replace(event, **fields) if index == at else event for index, event in enumerate(good.events)]
    return replace(good, events=tuple(events))


FAULTS: dict[str, tuple[Call, str]] = {
    "a delta before created": (renumbered(lambda events: events.insert(0, events.pop(1))), "grpc.created-first"),
    "created twice": (renumbered(lambda events: events.insert(1, events[0])), "grpc.created-first"),
    "a number twice": (with_event(3, sequence_number=2), "grpc.sequence"),
    "numbers from one": (
        replace(
            call(*GOOD),
            events=tuple(replace(one, sequence_number=one.sequence_number + 1) for one in call(*GOOD).events),
        ),
        "grpc.sequence",
    ),
    "another id": (with_event(4, response_id="resp_2"), "grpc.identity"),
    "no terminal": (renumbered(lambda events: events.pop()), "grpc.terminal"),
    "two terminals": (renumbered(lambda events: events.append(events[-1])), "grpc.terminal"),
    "a status behind events": (call(*GOOD, status="INTERNAL"), "grpc.status"),
    "OK without an event": (Call("empty", (), "OK"), "grpc.status"),
    "a choice that never finishes": (
        call(*GOOD[:5], finished(0), ("completed", {**USAGE, "num_output_tokens": 3})),
        "grpc.choices",
    ),
    "a delta behind its finish": (renumbered(lambda events: events.insert(6, events.pop(3))), "grpc.order"),
    "an empty delta": (renumbered(lambda events: events.insert(2, delta(0, ""))), "grpc.no-empty-delta"),
    "usage of one choice": (
        call(*GOOD[:-1], ("completed", {**USAGE, "num_output_tokens": 3})),
        "grpc.usage",
    ),
    "completed though cut": (call(*GOOD[:5], finished(0), finished(1, "length"), GOOD[-1]), "grpc.incomplete"),
}


GOOD_CALLS = {"n": call(*GOOD), "refused": REFUSED, "left": LEFT, "failed": FAILED, "cut": CUT}


@pytest.mark.parametrize("good", GOOD_CALLS.values(), ids=GOOD_CALLS)
def test_a_good_call_breaks_no_check(good: Call) -> None:
    assert {check.id: verdict.evidence for check in CHECKS if (verdict := check.judge(good)).result == "fail"} == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_is_seen_by_its_check_and_no_other(fault: str) -> None:
    bad, meant = FAULTS[fault]
    assert {check.id for check in CHECKS if check.judge(bad).result == "fail"} == {meant}


def test_every_check_has_its_mistake() -> None:
    assert {meant for _, meant in FAULTS.values()} == {check.id for check in CHECKS}
