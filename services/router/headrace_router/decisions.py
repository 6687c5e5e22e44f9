"""The last decisions, so that they can be explained. Knows no replica and takes no decision."""

from collections import OrderedDict
from dataclasses import dataclass

from headrace.v1 import response_pb2, routing_pb2
from headrace_router.scoring import Choice


@dataclass(frozen=True)
class Decision:
    """One decision as it is kept; the message is made when somebody asks."""

    decision_id: str
    response_id: str
    attempt: int
    choice: Choice
    why: str
    decided_at_ms: int

    def explanation(self) -> routing_pb2.ExplainResponse:
        return routing_pb2.ExplainResponse(
            decision_id=self.decision_id,
            response_id=self.response_id,
            attempt=self.attempt,
            candidates=_candidates(self.choice),
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


def _candidates(choice: Choice) -> list[routing_pb2.Candidate]:
    """Every replica that was looked at, as it is explained."""
    return [
        routing_pb2.Candidate(
            replica=response_pb2.ReplicaRef(id=each.view.id, epoch=each.view.epoch),
            picked=each is choice.picked,
            filtered=f"{each.why}: {each.detail}" if each.why else "",
            score=each.score,
            terms=each.terms,
        )
        for each in choice.candidates
    ]


def sentence(choice: Choice) -> str:
    """One line that says why."""
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
    return f"{', '.join(facts)}; {len(choice.candidates)} looked at"
