"""The last decisions, so that they can be explained. Knows no replica and takes no decision."""

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from math import isnan, nan

from headrace.v1 import response_pb2, routing_pb2
from headrace_router.scoring import TERMS, Choice

_NO_PARTS = (nan,) * len(TERMS)


class Record:
    """A choice as it is kept: flat, for a thousand decisions over a thousand replicas are a million candidates."""

    __slots__ = ("_filtered", "_numbers", "_picked", "_refs", "_width")

    def __init__(self, choice: Choice) -> None:
        candidates = choice.candidates
        self._refs = tuple(chain.from_iterable([each.view[:2] for each in candidates]))
        self._width = len(TERMS)
        self._numbers = array("d", list(chain.from_iterable([each.parts or _NO_PARTS for each in candidates])))
        self._filtered = {at: f"{each.why}: {each.detail}" for at, each in enumerate(candidates) if each.why}
        picked = choice.picked.view if choice.picked is not None else None
        self._picked = next((at for at, each in enumerate(candidates) if each.view is picked), -1)

    def candidates(self) -> list[routing_pb2.Candidate]:
        """Every replica that was looked at, as it is explained."""
        return [self._candidate(at) for at in range(len(self._refs) // 2)]

    def _candidate(self, at: int) -> routing_pb2.Candidate:
        parts = self._numbers[at * self._width : (at + 1) * self._width]
        scored = not isnan(parts[0])
        return routing_pb2.Candidate(
            replica=response_pb2.ReplicaRef(id=self._refs[2 * at], epoch=self._refs[2 * at + 1]),
            picked=at == self._picked,
            filtered=self._filtered.get(at, ""),
            score=sum(parts) if scored else 0.0,
            terms=dict(zip(TERMS, parts, strict=True)) if scored else {},
        )


@dataclass(frozen=True)
class Asked:
    """Who asked for a decision: which attempt of which response, at which gateway."""

    response_id: str
    attempt: int
    gateway_id: str


@dataclass(frozen=True)
class Decision:
    """One decision as it is kept; the message is made when somebody asks."""

    decision_id: str
    asked: Asked
    record: Record
    why: str
    decided_at_ms: int

    def explanation(self) -> routing_pb2.ExplainResponse:
        return routing_pb2.ExplainResponse(
            decision_id=self.decision_id,
            response_id=self.asked.response_id,
            attempt=self.asked.attempt,
            gateway_id=self.asked.gateway_id,
            candidates=self.record.candidates(),
            why=self.why,
            decided_at_ms=self.decided_at_ms,
        )


class DecisionLog:
    """At most ``capacity`` decisions, the oldest leave first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, Decision] = OrderedDict()

    def add(self, decision: Decision) -> None:
        self._entries[decision.decision_id] = decision
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def get(self, decision_id: str) -> Decision | None:
        return self._entries.get(decision_id)


def sentence(choice: Choice, pairing: str = "") -> str:
    """One line that says why; `pairing`: what was decided of a prefill replica."""
    picked = choice.picked
    assert picked is not None, "a decision has a replica"
    view, scored = picked.view, choice.scored
    terms = ", ".join(f"{name} {value:.3g}" for name, value in picked.terms.items() if value) or "idle"
    facts = [f"{view.id}: score {picked.score:.3g} ({terms}) of {len(scored)} that fit"]
    longest = max(scored, key=lambda each: each.num_hit_tokens)
    if view.num_hit_tokens:
        facts.append(f"holds {view.num_hit_tokens} tokens of the prompt")
    if longest.num_hit_tokens > view.num_hit_tokens:
        over = " and is over its share of the load" if longest in choice.filtered("spread") else ""
        facts.append(f"{longest.id} holds {longest.num_hit_tokens}{over}")
    if not view.fresh:
        facts.append("its load report is old")
    if pairing:
        facts.append(pairing)
    return f"{', '.join(facts)}; {len(choice.candidates)} looked at"
