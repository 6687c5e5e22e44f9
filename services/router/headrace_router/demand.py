"""What this router tells the control plane: what it was asked for since its last report, by model, and what became of
revisions on trial. Knows no replica."""

from dataclasses import dataclass, field

from headrace.v1 import fleet_pb2
from headrace_router.scoring import Ask
from headrace_router.trials import Arm, Outcomes


@dataclass
class _Count:
    num_arrivals: int = 0
    num_prompt_tokens: int = 0
    num_output_bound_tokens: int = 0
    held: dict[object, tuple[str, float]] = field(default_factory=dict)
    """Fairness key and time of each request that is held."""


class Demand:
    """Counts arrivals of an interval and the requests that are held now; times in seconds, monotonic."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}
        self.outcomes = Outcomes()

    def arrived(self, ask: Ask) -> None:
        count = self._counts.setdefault(ask.model, _Count())
        count.num_arrivals += 1
        count.num_prompt_tokens += ask.num_prompt_tokens
        count.num_output_bound_tokens += ask.max_output_tokens * ask.n

    def held(self, ask: Ask, token: object, since: float) -> None:
        self._counts.setdefault(ask.model, _Count()).held[token] = (ask.fair_key, since)

    def let_go(self, model: str, token: object) -> None:
        self._counts[model].held.pop(token, None)

    def num_held(self, model: str, fair_key: str | None = None) -> int:
        """Of everybody, or of one fairness key."""
        count = self._counts.get(model)
        if count is None or fair_key is None:
            return len(count.held) if count else 0
        return sum(key == fair_key for key, _ in count.held.values())

    def take(self, now: float) -> list[fleet_pb2.ModelDemand]:
        """The interval that ends now; the next one begins."""
        rows = []
        for model, count in list(self._counts.items()):
            oldest = min((since for _, since in count.held.values()), default=now)
            rows.append(
                fleet_pb2.ModelDemand(
                    model=model,
                    num_arrivals=count.num_arrivals,
                    num_prompt_tokens=count.num_prompt_tokens,
                    num_output_bound_tokens=count.num_output_bound_tokens,
                    num_held=len(count.held),
                    oldest_held_ms=round((now - oldest) * 1000),
                )
            )
            if count.held:
                self._counts[model] = _Count(held=count.held)
            else:
                del self._counts[model]
        return rows

    def outcome_rows(self) -> list[fleet_pb2.RevisionOutcomes]:
        """Totals of revisions on trial and of those beside them."""
        return [_outcome_row(arm, counts) for arm, counts in self.outcomes.rows()]


def _outcome_row(arm: Arm, counts: tuple[int, ...]) -> fleet_pb2.RevisionOutcomes:
    ended, failed, ttft_met, ttft_missed, inter_token_met, inter_token_missed = counts
    return fleet_pb2.RevisionOutcomes(
        model=arm.model,
        revision=arm.revision,
        trial=arm.trial,
        num_ended=ended,
        num_failed=failed,
        num_ttft_met=ttft_met,
        num_ttft_missed=ttft_missed,
        num_inter_token_met=inter_token_met,
        num_inter_token_missed=inter_token_missed,
    )
