"""What a request may need, what a response is billed, what it costs (DESIGN section 4). Pure arithmetic."""

from dataclasses import dataclass

_MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """Money per million tokens."""

    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0

    def cost(self, num_uncached: int, num_cached: int, num_output: int) -> float:
        total = num_uncached * self.prompt + num_cached * self.cached + num_output * self.output
        return total / _MILLION


@dataclass(frozen=True)
class Declared:
    """The declared bounds of one response."""

    num_prompt: int
    max_output: int
    n: int


@dataclass(frozen=True)
class Billed:
    """What one settlement charges; prompt tokens are split because reused ones have their own price."""

    num_requests: int = 0
    num_uncached: int = 0
    num_cached: int = 0
    num_output: int = 0

    def units(self, limit: str, prices: Prices) -> float:
        """Units of one limit that were really used."""
        num_prompt = self.num_uncached + self.num_cached
        return {
            "rpm": float(self.num_requests),
            "tpm": float(num_prompt + self.num_output),
            "input_tpm": float(num_prompt),
            "output_tpm": float(self.num_output),
            "concurrency": 0.0,
            "tokens_per_day": float(num_prompt + self.num_output),
            "spend_per_day": prices.cost(self.num_uncached, self.num_cached, self.num_output),
        }[limit]


def reserved(limit: str, declared: Declared, prices: Prices) -> float:
    """Units of one limit that a reservation holds: the whole declared future, no prompt token reused."""
    if limit == "concurrency":
        return 1.0
    return Billed(1, declared.num_prompt, 0, declared.max_output * declared.n).units(limit, prices)


def billed(kind: str, num_prompt: int, num_cached: int, num_output: int) -> Billed:
    """``kind``: released (never created), completed, incomplete, failed or cancelled (decision 10)."""
    if kind == "released":
        return Billed()
    if kind == "failed":
        return Billed(num_requests=1)
    num_cached = min(num_cached, num_prompt)
    return Billed(1, num_prompt - num_cached, num_cached, num_output)
