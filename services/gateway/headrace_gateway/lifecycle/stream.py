"""The one ordered stream to the client: numbers every event and holds text back while it is screened.

Appends to a list of outputs that its caller owns. Does not know why a response ends.
"""

from __future__ import annotations

from .choice import Choice
from .events import Redaction, Screening
from .outputs import ChoiceFinished, Created, Delta, Output, Screen, Terminal
from .settlement import Usage


class Stream:
    """Sequence numbers 0, 1, 2, ... over everything the client sees."""

    __slots__ = ("num_events", "screening")

    def __init__(self) -> None:
        self.num_events = 0
        self.screening = Screening.NONE

    def _next_number(self) -> int:
        number = self.num_events
        self.num_events = number + 1
        return number

    def open(self, attempt: int, out: list[Output]) -> None:
        """Once per response: a later attempt goes on in the same stream."""
        if self.num_events == 0:
            out.append(Created(self._next_number(), attempt))

    def show(self, attempt: int, choice: Choice, part: tuple[str, int, tuple[object, ...]], out: list[Output]) -> None:
        """Text that left the detokenizer, as (text, tokens it completes, logprobs): to the client, or to screening."""
        text, num_tokens, logprobs = part
        if self.screening is Screening.NONE:
            choice.num_shown += num_tokens
            choice.num_released_chars += len(text)
            number = self.num_events
            self.num_events = number + 1
            out.append(Delta(number, choice.index, text, num_tokens, logprobs))
        else:
            out.append(Screen(attempt, choice.index, choice.hold(text, num_tokens, logprobs), text, final=False))

    def release(self, choice: Choice, up_to: int, redactions: tuple[Redaction, ...], out: list[Output]) -> None:
        """Screening lets text pass; what a redaction empties makes no delta."""
        released = choice.release(up_to, redactions)
        if released is None:
            return
        choice.num_shown += released.num_tokens
        choice.num_redacted += released.num_redacted
        if released.text:
            number = self._next_number()
            out.append(Delta(number, choice.index, released.text, released.num_tokens, released.logprobs))

    def finish(self, choice: Choice, reason: str, out: list[Output]) -> None:
        choice.finished = True
        choice.reason = reason
        out.append(ChoiceFinished(self._next_number(), choice.index, reason, choice.num_output, choice.stop))

    def end(self, ending: tuple[str, str, str], usage: Usage, out: list[Output]) -> None:
        """The terminal, from (kind, reason, detail)."""
        kind, reason, detail = ending
        out.append(Terminal(self._next_number(), kind, reason, detail, usage))
