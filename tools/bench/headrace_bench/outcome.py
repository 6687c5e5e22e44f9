"""What became of one request, by the client's clock. Plain data; seconds from the start of the run."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """`due_s` is when it should have been sent; the rest is 0 or empty until it happens.

    `texts_s` has the arrival of each event that carried text; `num_output` is the server's own count where it gives
    one, else the number of those events. `error` is empty for a stream that ended as it should.
    """

    number: int
    model: str
    due_s: float
    sent_s: float = 0.0
    ended_s: float = 0.0
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    counted_by_server: bool = False
    finish_reason: str = ""
    error: str = ""
    texts_s: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        """Time to the first text; None if there was none."""
        return self.texts_s[0] - self.sent_s if self.texts_s else None

    @property
    def latency_s(self) -> float:
        """From the request to the end of the stream."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with fewer than two tokens."""
        if len(self.texts_s) < 2 or self.num_output < 2:
            return None
        return (self.texts_s[-1] - self.texts_s[0]) / (self.num_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between one text and the next, as a reader sees them."""
        return [after - before for before, after in zip(self.texts_s, self.texts_s[1:], strict=False)]
