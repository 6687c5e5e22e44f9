"""Which replica: compatibility, then readiness, then one score. Pure: the same state and draw give the same choice.

    score = predicted time to first token + inter-token pressure + memory pressure - session credit

each without a unit, lower is better. Two things stand beside the score. A replica over its share of the load is passed
over whatever its cache holds (bounded loads, arXiv:1608.01350), so that a hot prefix cannot overload it; and among near
ties, or those of them that hold most of the prompt, two are drawn and the less loaded one is taken (power of two
choices, Mitzenmacher 2001), so that routers with the same picture do not all pick the same replica. Knows no stream,
no clock and no message.
"""

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Literal, NamedTuple

from headrace_router.deadlines import Budget
from headrace_router.prediction import NOMINAL, UNKNOWN, StepCost

Why = Literal["", "incompatible", "context", "features", "not_ready", "breaker", "excluded", "full", "spread"]
TERMS = ("ttft", "inter_token", "memory", "session")
PATIENT = Budget(ttft_s=30.0, max_queue_s=30.0)
"""The class of a request that has none."""
# Times are measured in prompts of the request's own length, but not below this share of the TTFT budget: who has 30 s
# does not care for milliseconds.
FLOOR_SHARE = 1 / 20
UNSTATED_INTER_TOKEN_S = 0.1
SESSION_CREDIT = 0.15
NEAR = 0.05
# A replica may carry a quarter more than its share of the requests, and this many beside.
MOST_OF_MEAN = 1.25
SPREAD_SLACK = 2.0


@dataclass(frozen=True)
class Ask:
    """What a request needs of a replica."""

    model: str
    revisions: Set[str] = frozenset()
    """Those that may serve it, for during a rollout old and new ones do so side by side; empty: any."""
    on_trial: str = ""
    """Revision that is tried before those, for it falls to a trial."""
    slo_class: str = ""
    budget: Budget = PATIENT
    num_prompt_tokens: int = 0
    max_output_tokens: int = 0
    n: int = 1
    grammar: bool = False
    logprobs: bool = False
    excluded: frozenset[str] = frozenset()
    session: str = ""
    fair_key: str = ""

    @property
    def num_tokens(self) -> int:
        """The longest that one choice can become."""
        return self.num_prompt_tokens + self.max_output_tokens

    @property
    def num_bound_tokens(self) -> int:
        """Tokens of KV that it may come to, all choices together."""
        return self.num_prompt_tokens + self.max_output_tokens * self.n


class View(NamedTuple):
    """One replica at the moment of a decision; a tuple, for each decision makes one per replica."""

    id: str
    epoch: str
    model: str
    revision: str
    role: str = "both"
    classes: tuple[str, ...] = ()
    """SLO classes that its pool serves; empty: all."""
    grammar: bool = False
    logprobs: bool = False
    max_context_tokens: int = 0
    """0 = not known: no limit."""
    num_running: int = 0
    num_waiting: int = 0
    max_waiting: int = 0
    """0 = not known: no limit."""
    num_queued_tokens: int = 0
    """Prompt tokens that are not computed yet."""
    num_held_tokens: int = 0
    num_promised_tokens: int = 0
    num_pool_tokens: int = 0
    state: str = "ready"
    connected: bool = True
    """Its own watch is open, so the state is its word and not a memory."""
    breaker_open: bool = False
    fresh: bool = True
    """Its load report is recent."""
    num_unseen: int = 0
    """Own decisions that no report has listed yet; their prompt tokens to compute, and all they may come to."""
    num_unseen_tokens: int = 0
    num_unseen_bound_tokens: int = 0
    num_in_flight: int = 0
    """Own decisions whose outcome is not reported yet."""
    num_recent_tokens: float = 0.0
    """Weight of what was sent there lately, fading."""
    num_hit_tokens: int = 0
    """Leading tokens of this prompt that its cache is said to hold."""
    cost: StepCost = UNKNOWN

    @property
    def num_requests(self) -> int:
        """Its load. An old report says nothing; what this router sent there and did not get back is known."""
        return self.num_running + self.num_waiting + self.num_unseen if self.fresh else self.num_in_flight

    @property
    def num_tokens_ahead(self) -> int:
        return (self.num_queued_tokens if self.fresh else 0) + self.num_unseen_tokens

    @property
    def queue_s(self) -> float:
        """Seconds that the prompts ahead take; 0 while nothing is known."""
        return self.cost.queue_s(self.num_tokens_ahead)


class Candidate(NamedTuple):
    """What became of one replica in a decision; ``why`` is empty if it could be picked."""

    view: View
    why: Why = ""
    detail: str = ""
    score: float = 0.0
    parts: tuple[float, ...] = ()

    @property
    def terms(self) -> dict[str, float]:
        """Parts of the score by name; they sum to it."""
        return dict(zip(TERMS, self.parts, strict=False))


@dataclass(frozen=True)
class Choice:
    """The decision; `explain` says what became of every replica that was looked at, which not everybody asks."""

    picked: Candidate | None
    explain: Callable[[], tuple[Candidate, ...]] = field(compare=False, repr=False)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every replica that was looked at, in the order of the views."""
        return self.explain()

    def filtered(self, why: Why) -> list[View]:
        return [candidate.view for candidate in self.candidates if candidate.why == why]

    @property
    def scored(self) -> list[View]:
        """Replicas that can serve it, whether or not they were passed over for their load."""
        return [candidate.view for candidate in self.candidates if candidate.parts]


def choose(ask: Ask, views: Sequence[View], draw: float) -> Choice:
    """The best replica; ``draw`` in [0, 1) decides between near ties. None fits: ``picked`` is None."""
    assert 0 <= draw < 1, "a draw lies in [0, 1)"
    fit = [view for view in views if not _refusal(ask, view)[0]]
    if not fit:
        return Choice(None, lambda: tuple(Candidate(view, *_refusal(ask, view)) for view in views))
    scoring = _Scoring(ask, fit)
    # A replica whose load is known goes before one whose load is guessed.
    ranked = scoring.ranked(scoring.fresh) or scoring.ranked(fit)
    limit = min([score for score, _ in ranked], default=math.inf) + NEAR
    near = [view for score, view in ranked if score <= limit]
    # Where a prefill costs next to nothing it is saved all the same.
    least = max([view.num_hit_tokens for view in near], default=0) - NEAR * ask.num_prompt_tokens
    picked = _less_loaded([view for view in near if view.num_hit_tokens >= least], draw)
    return Choice(None if picked is None else scoring.candidate(picked), lambda: scoring.explain(views))


def num_new_tokens(ask: Ask, view: View) -> int:
    """Prompt tokens to compute there; a full hit recomputes the last one (decision 15)."""
    num_prompt = ask.num_prompt_tokens
    return max(1, num_prompt - view.num_hit_tokens) if num_prompt else 0


class _Scoring:
    """What the replicas of one decision are measured by."""

    def __init__(self, ask: Ask, fit: Sequence[View]) -> None:
        self._ask = ask
        # One that has published nothing yet is taken for like the others. By identity: equal ones need not be found.
        costs = list({id(view.cost): view.cost for view in fit if view.cost is not UNKNOWN}.values()) or [NOMINAL]
        self._default = costs[0]
        whole_s = min([cost.prefill_s(ask.num_prompt_tokens) for cost in costs])
        self._scale_s = max(whole_s, ask.budget.ttft_s * FLOOR_SHARE)
        self._inter_token_s = ask.budget.inter_token_s or UNSTATED_INTER_TOKEN_S
        self.fresh = [view for view in fit if view.fresh]
        peers = self.fresh or fit
        pools = [view.num_pool_tokens for view in peers]
        self._weighted = all(pools)
        weights = sum(pools) if self._weighted else len(peers)
        self._most_per_weight = MOST_OF_MEAN * (sum([view.num_requests for view in peers]) + 1) / weights
        self._num_prompt_tokens, self._num_bound_tokens = ask.num_prompt_tokens, ask.num_bound_tokens
        self._home = max(fit, key=lambda view: _kinship(ask.session, view.id)).id if ask.session else ""
        self._prefills: dict[tuple[int, int], float] = {}

    def ranked(self, fit: Sequence[View]) -> list[tuple[float, View]]:
        """Scores of those that are not over their share of the load."""
        found = []
        for view in fit:
            num_requests = view.num_requests
            if num_requests + 1 <= self._most(view):
                found.append((sum(self._parts(view, num_requests)), view))
        return found

    def explain(self, views: Sequence[View]) -> tuple[Candidate, ...]:
        refusals = [(view, *_refusal(self._ask, view)) for view in views]
        return tuple([Candidate(*refusal) if refusal[1] else self.candidate(refusal[0]) for refusal in refusals])

    def candidate(self, view: View) -> Candidate:
        """What became of one that fits."""
        num_requests, most = view.num_requests, self._most(view)
        parts = self._parts(view, num_requests)
        if num_requests + 1 > most:
            detail = f"{num_requests + 1} requests, its share is {most:.1f}"
            return Candidate(view, "spread", detail, sum(parts), parts)
        return Candidate(view, "", "", sum(parts), parts)

    def _most(self, view: View) -> float:
        """Requests that it may carry, this one included."""
        return self._most_per_weight * (view.num_pool_tokens if self._weighted else 1) + SPREAD_SLACK

    def _parts(self, view: View, num_requests: int) -> tuple[float, float, float, float]:
        """Runs once per replica and decision: what does not depend on the replica is in the constructor."""
        cost = self._default if view.cost is UNKNOWN else view.cost
        num_prompt, num_unseen = self._num_prompt_tokens, view.num_unseen_bound_tokens
        held, promised = (view.num_held_tokens, view.num_promised_tokens) if view.fresh else (0, 0)
        ttft_s = cost.queue_s(view.num_tokens_ahead) + self._prefill_s(cost, view)
        decode_s = cost.decode_s(num_requests + self._ask.n, held + num_unseen + num_prompt)
        pool = view.num_pool_tokens
        return (
            ttft_s / self._scale_s,
            decode_s / self._inter_token_s,
            (promised + num_unseen + self._num_bound_tokens) / pool if pool else 0.0,
            -SESSION_CREDIT if view.id == self._home else 0.0,
        )

    def _prefill_s(self, cost: StepCost, view: View) -> float:
        """Replicas of one make that hold as much of the prompt take as long."""
        key = id(cost), view.num_hit_tokens
        found = self._prefills.get(key)
        if found is None:
            num_new = num_new_tokens(self._ask, view)
            found = self._prefills[key] = cost.prefill_s(num_new, self._num_prompt_tokens - num_new)
        return found


def _kinship(session: str, replica_id: str) -> bytes:
    """Rendezvous hashing: every router finds the same home for a session, and few move when replicas come and go."""
    return blake2b(f"{session}\0{replica_id}".encode(), digest_size=8).digest()


def _less_loaded(near: Sequence[View], draw: float) -> View | None:
    """Of two drawn without replacement."""
    if len(near) < 2:
        return near[0] if near else None
    first, rest = divmod(draw * len(near), 1.0)
    second = int(rest * (len(near) - 1))
    pair = (near[int(first)], near[second + (second >= int(first))])
    return min(pair, key=lambda each: (each.num_requests, each.num_recent_tokens))


def _refusal(ask: Ask, view: View) -> tuple[Why, str]:
    if detail := _incompatibility(ask, view):
        return "incompatible", detail
    if not view.connected:
        return "not_ready", "unreachable"
    if view.state != "ready":
        return "not_ready", view.state
    if (ask.grammar and not view.grammar) or (ask.logprobs and not view.logprobs):
        return "features", "lacks grammar" if ask.grammar and not view.grammar else "lacks logprobs"
    if 0 < view.max_context_tokens < ask.num_tokens:
        return "context", f"context of {view.max_context_tokens} tokens"
    if view.id in ask.excluded:
        return "excluded", "excluded by the caller"
    if view.fresh and 0 < view.max_waiting <= view.num_waiting:
        return "full", f"{view.num_waiting} wait, as many as may"
    return ("breaker", "breaker open") if view.breaker_open else ("", "")


def _incompatibility(ask: Ask, view: View) -> str:
    if view.model != ask.model:
        return f"model {view.model}"
    if ask.revisions and view.revision not in ask.revisions:
        return f"revision {view.revision}"
    if view.role == "prefill":
        return f"role {view.role}"
    if view.classes and ask.slo_class not in view.classes:
        return "class not served"
    return ""
