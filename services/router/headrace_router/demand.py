"""What this router was asked for since its last report, by model. Knows no replica."""

from dataclasses import dataclass, field

from headrace.v1 import fleet_pb2
from headrace_router.scoring import Ask


@dataclass
class _Count:
    num_arrivals: int = 0
    num_prompt_tokens: int = 0
    num_output_bound_tokens: int = 0
    held_since: dict[object, float] = field(default_factory=dict)


class Demand:
    """Counts arrivals of an interval and the requests that are held now; times in seconds, monotonic."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def arrived(self, ask: Ask, n: int) -> None:
        count = self._counts.setdefault(ask.model, _Count())
        count.num_arrivals += 1
        count.num_prompt_tokens += ask.num_prompt_tokens
        count.num_output_bound_tokens += ask.max_output_tokens * n

    def held(self, model: str, token: object, since: float) -> None:
        self._counts.setdefault(model, _Count()).held_since[token] = since

    def let_go(self, model: str, token: object) -> None:
        self._counts[model].held_since.pop(token, None)

    def num_held(self, model: str) -> int:
        count = self._counts.get(model)
        return len(count.held_since) if count else 0

    def take(self, now: float) -> list[fleet_pb2.ModelDemand]:
        """The interval that ends now; the next one begins."""
        rows = []
        for model, count in list(self._counts.items()):
            oldest = min(count.held_since.values(), default=now)
            rows.append(
                fleet_pb2.ModelDemand(
                    model=model,
                    num_arrivals=count.num_arrivals,
                    num_prompt_tokens=count.num_prompt_tokens,
                    num_output_bound_tokens=count.num_output_bound_tokens,
                    num_held=len(count.held_since),
                    oldest_held_ms=round((now - oldest) * 1000),
                )
            )
            if count.held_since:
                self._counts[model] = _Count(held_since=count.held_since)
            else:
                del self._counts[model]
        return rows
