"""One choice of one attempt: what arrived, what was shown, how it ended.

Keeps counts and the text that screening still withholds. Knows nothing of the other choices.
"""

from __future__ import annotations

from .events import ChoiceFinal, Redaction


class Segment:
    """Text that arrived together: it ends at code point `end`; its tokens are out when the text is."""

    __slots__ = ("end", "logprobs", "num_tokens", "text")

    def __init__(self, text: str, end: int, num_tokens: int, logprobs: tuple[object, ...]) -> None:
        self.text = text
        self.end = end
        self.num_tokens = num_tokens
        self.logprobs = logprobs


class Released:
    """Text on its way out with the tokens it completes; `num_redacted` of them were replaced by a rule."""

    __slots__ = ("logprobs", "num_redacted", "num_tokens", "text")

    def __init__(self, text: str, num_tokens: int, num_redacted: int, logprobs: tuple[object, ...]) -> None:
        self.text = text
        self.num_tokens = num_tokens
        self.num_redacted = num_redacted
        self.logprobs = logprobs


class Choice:
    """Mutable state of one choice; `reason` is set when no more text can come, `finished` when the client knows."""

    __slots__ = (
        "cancelled",
        "final",
        "finished",
        "flagged",
        "index",
        "num_received",
        "num_redacted",
        "num_released_chars",
        "num_screened_chars",
        "num_shown",
        "pending",
        "reason",
        "screened",
        "stop",
        "stop_at",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.num_received = 0
        self.num_shown = 0
        self.num_redacted = 0
        self.stop_at: int | None = None
        self.stop = ""
        self.reason = ""
        self.finished = False
        self.screened = False
        self.flagged = False
        self.cancelled = False
        self.final: ChoiceFinal | None = None
        self.pending: list[Segment] = []
        self.num_screened_chars = 0
        self.num_released_chars = 0

    @property
    def num_generated(self) -> int:
        """Every token the worker sampled for it; what arrived is the truth when no final did."""
        return self.num_received if self.final is None else max(self.final.num_generated, self.num_received)

    @property
    def num_late(self) -> int:
        """Tokens of a step in flight at the end, never part of the output."""
        if self.final is None:
            return 0
        num_past_known = self.num_generated - (self.num_received if self.stop_at is None else self.stop_at)
        return min(self.final.num_late, num_past_known)

    @property
    def num_output(self) -> int:
        """Tokens that count: up to the one that completed a stop string, else all but late ones."""
        return self.num_generated - self.num_late if self.stop_at is None else self.stop_at

    @property
    def num_overshoot(self) -> int:
        return self.num_generated - self.num_late - self.num_output

    @property
    def ended_at_worker(self) -> bool:
        return self.final is not None

    def hold(self, text: str, num_tokens: int, logprobs: tuple[object, ...]) -> int:
        """Withhold text until screening releases it; returns its offset in code points."""
        offset = self.num_screened_chars
        self.num_screened_chars += len(text)
        self.pending.append(Segment(text, self.num_screened_chars, num_tokens, logprobs))
        return offset

    def release(self, up_to: int, redactions: tuple[Redaction, ...]) -> Released | None:
        """Take out the raw text before code point `up_to`, replaced where a rule says so; None if nothing is new."""
        up_to = min(up_to, self.num_screened_chars)
        start = self.num_released_chars
        if up_to <= start:
            return None
        raw: list[str] = []
        logprobs: list[object] = []
        num_tokens = num_redacted = 0
        while self.pending and start < up_to:
            segment = self.pending[0]
            take = min(segment.end, up_to) - start
            raw.append(segment.text[:take])
            if segment.end <= up_to:
                self.pending.pop(0)
                num_tokens += segment.num_tokens
                if any(cut.start < segment.end and segment.end - len(segment.text) < cut.end for cut in redactions):
                    num_redacted += segment.num_tokens
                else:
                    logprobs.extend(segment.logprobs)
            else:
                segment.text = segment.text[take:]
            start += take
        text = _redact("".join(raw), self.num_released_chars, redactions)
        self.num_released_chars = up_to
        return Released(text, num_tokens, num_redacted, tuple(logprobs))


def _redact(text: str, offset: int, redactions: tuple[Redaction, ...]) -> str:
    """Replace ranges given in code points from the start of the choice; `text` begins at `offset`."""
    parts: list[str] = []
    done = 0
    for cut in sorted(redactions, key=lambda redaction: redaction.start):
        start, end = max(cut.start - offset, done), min(cut.end - offset, len(text))
        if start >= end:
            continue
        parts += (text[done:start], cut.replacement)
        done = end
    parts.append(text[done:])
    return "".join(parts)
