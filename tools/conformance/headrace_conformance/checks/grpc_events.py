"""The gRPC contract over one recorded call: plain data, so that no stub is needed to judge it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_conformance.verdict import Verdict, combined, failed, judged, na, passed

TERMINALS = ("completed", "incomplete", "failed", "cancelled")


@dataclass(frozen=True)
class GrpcEvent:
    """``kind`` is the name of the event, ``fields`` what it carries, by field name."""

    response_id: str
    sequence_number: int
    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One Generate call. ``status`` is the name of its code; ``left`` is true where this client ended it."""

    name: str
    events: tuple[GrpcEvent, ...]
    status: str
    n: int = 1
    left: bool = False

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def text(self, choice: int = 0) -> str:
        deltas = [event.fields for event in self.events if event.kind == "delta"]
        return "".join(delta["text"] for delta in deltas if delta["choice"] == choice)


@dataclass(frozen=True)
class CallCheck:
    """A rule that one call can decide by itself."""

    id: str
    title: str
    reason: str
    judge: Callable[[Call], Verdict]

    def over(self, calls: tuple[Call, ...]) -> Verdict:
        return combined([(call.name, self.judge(call)) for call in calls], "no call")


def created_first(call: Call) -> Verdict:
    kinds = call.kinds
    if not kinds:
        return na(f"refused with {call.status}")
    fine = kinds[0] == "created" and kinds.count("created") == 1
    return passed("created, once") if fine else failed(f"begins with {kinds[:3]}, {kinds.count('created')} created")


def sequence(call: Call) -> Verdict:
    numbers = [event.sequence_number for event in call.events]
    return judged([] if numbers == list(range(len(numbers))) else [f"numbers {numbers}"], f"0 to {len(numbers) - 1}")


def one_identity(call: Call) -> Verdict:
    ids = {event.response_id for event in call.events}
    if not ids:
        return na("no event")
    return passed(ids.pop()) if len(ids) == 1 and "" not in ids else failed(f"ids {sorted(ids)}")


def one_terminal(call: Call) -> Verdict:
    ends = [(at, kind) for at, kind in enumerate(call.kinds) if kind in TERMINALS]
    if not call.events or call.left:
        return na("no response to end" if not call.events else "this client left")
    fine = [at for at, _ in ends] == [len(call.events) - 1]
    return passed(call.kinds[-1]) if fine else failed(f"terminals {ends} in {len(call.events)} events")


def status_fits(call: Call) -> Verdict:
    """Before created: a status that is not OK and no event. Behind the terminal: OK."""
    if call.left:
        return na("this client left")
    if not call.events:
        return passed(call.status) if call.status != "OK" else failed("OK without any event")
    return passed("OK") if call.status == "OK" else failed(f"{call.status} behind {len(call.events)} events")


def choices_finish(call: Call) -> Verdict:
    finished = sorted(event.fields["choice"] for event in call.events if event.kind == "choice_finished")
    if not call.events or call.kinds[-1] not in TERMINALS[:2]:
        return na("not completed or incomplete")
    fine = finished == list(range(call.n))
    return passed(f"{call.n} finished") if fine else failed(f"finished {finished}, {call.n} choices")


def nothing_behind_finish(call: Call) -> Verdict:
    ended: set[int] = set()
    for at, event in enumerate(call.events):
        if event.kind == "choice_finished":
            ended.add(event.fields["choice"])
        elif event.kind == "delta" and event.fields["choice"] in ended:
            return failed(f"event {at} is a delta of choice {event.fields['choice']}, which had finished")
    return passed("no delta behind its choice_finished") if call.events else na("no event")


def no_empty_delta(call: Call) -> Verdict:
    deltas = [(at, event.fields) for at, event in enumerate(call.events) if event.kind == "delta"]
    empty = [at for at, fields in deltas if not (fields["text"] or fields["reasoning"] or fields["tool_call"])]
    return judged([f"events {empty} are empty deltas"] if empty else [], f"{len(deltas)} deltas")


def usage_adds_up(call: Call) -> Verdict:
    if not call.events or call.kinds[-1] not in TERMINALS[:2]:
        return na("not completed or incomplete")
    finished = [event.fields["num_output_tokens"] for event in call.events if event.kind == "choice_finished"]
    used = call.events[-1].fields["num_output_tokens"]
    return passed(f"{used}") if used == sum(finished) else failed(f"usage says {used}, its choices {finished}")


def incomplete_fits(call: Call) -> Verdict:
    """Incomplete if any choice ended by length or by a content rule, completed if none did."""
    reasons = [event.fields["reason"] for event in call.events if event.kind == "choice_finished"]
    if not call.events or call.kinds[-1] not in TERMINALS[:2]:
        return na("not completed or incomplete")
    due = "incomplete" if {"length", "content_filter"} & set(reasons) else "completed"
    return passed(due) if call.kinds[-1] == due else failed(f"{call.kinds[-1]} with choices that ended by {reasons}")


CHECKS = (
    CallCheck("grpc.created-first", "A response begins with created, once",
              "before it there is a status and nothing else", created_first),
    CallCheck("grpc.sequence", "sequence_number runs from 0 without gaps", "clients find lost events by it", sequence),
    CallCheck("grpc.identity", "All events of a stream carry one response id",
              "it is the name for cancel, retry and the bill", one_identity),
    CallCheck("grpc.terminal", "Exactly one terminal, and it is the last event",
              "a response ends exactly once", one_terminal),
    CallCheck("grpc.status", "No event and a status that is not OK, or a terminal and then OK",
              "there is no third way: a status behind events would end the response twice", status_fits),
    CallCheck("grpc.choices", "Every choice finishes once in a finished response",
              "n answers have n reasons to end", choices_finish),
    CallCheck("grpc.order", "No delta follows the end of its choice",
              "a client that closed the choice would lose it", nothing_behind_finish),
    CallCheck("grpc.no-empty-delta", "No delta is empty",
              "an empty delta wakes the client for nothing", no_empty_delta),
    CallCheck("grpc.usage", "The usage of a response is the sum of its choices",
              "bills are made from it", usage_adds_up),
    CallCheck("grpc.incomplete", "A response is incomplete if and only if a choice was cut",
              "half an answer must not look like a whole one", incomplete_fits),
)  # fmt: skip
