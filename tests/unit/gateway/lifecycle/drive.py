"""Drives one machine by hand or with a paper worker that generates a script, as the shell around it would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from headrace_gateway.lifecycle import Response, Terms
from headrace_gateway.lifecycle.events import (
    Accepted,
    Admitted,
    ChoiceFinal,
    Decision,
    Event,
    Routed,
    Screening,
    Start,
    Tick,
    Tokens,
)
from headrace_gateway.lifecycle.outputs import (
    Cancel,
    ChoiceFinished,
    Created,
    Delta,
    Output,
    Refusal,
    Settle,
    Terminal,
)
from headrace_gateway.lifecycle.settlement import Settlement
from headrace_gateway.text.choice_text import ChoiceText, TextStep
from headrace_gateway.text.detokenizer import Detokenizer
from headrace_gateway.text.stop_strings import StopStrings
from headrace_gateway.text.token_bytes import ScriptedBytes

from .observer import Observer

Kind = TypeVar("Kind")
PROMPT = 22


def decision(number: int, queue_s: float = 10.0) -> Decision:
    return Decision(f"d{number}", f"w{number}", f"e{number}", queue_s)


class Drive:
    """A machine with its clock and everything it asked for; every promise of the contract is asserted on the way."""

    def __init__(self, n: int = 1, **terms: Any) -> None:
        self.now = 0.0
        self.machine = Response(Terms(n, PROMPT, **({"total_s": 60.0} | terms)), self.now)
        self.observer = Observer(n)
        self.outputs: list[Output] = []

    def feed(self, *events: Event) -> list[Output]:
        """The outputs of these events alone."""
        fresh: list[Output] = []
        for event in events:
            if isinstance(event, Routed):
                self.observer.answered(event.attempt, routed=True)
            self.observer.hear(event)
            outputs = self.machine.handle(event, now=self.now)
            self.observer.see(outputs, self.machine)
            fresh += outputs
        self.outputs += fresh
        return fresh

    def tick(self) -> list[Output]:
        """Time passes up to the next deadline."""
        assert self.machine.next_deadline is not None
        self.now = self.machine.next_deadline
        return self.feed(Tick())

    def accept(self, screening: Screening = Screening.NONE) -> None:
        """As far as `created`, on the first replica."""
        self.feed(Start(), Admitted(screening), Routed(1, decision(1)), Accepted(1))

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [output for output in self.outputs if isinstance(output, kind)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.of(Delta))

    @property
    def terminal(self) -> Terminal:
        (terminal,) = self.of(Terminal)
        return terminal

    @property
    def refusal(self) -> Refusal:
        (refusal,) = self.of(Refusal)
        return refusal

    @property
    def settlement(self) -> Settlement:
        (settle,) = self.of(Settle)
        return settle.settlement

    @property
    def stream(self) -> list[str]:
        """What the client sees, one word per event."""
        shown = (Created, Delta, ChoiceFinished, Terminal)
        return [_word(output) for output in self.outputs if isinstance(output, shown)]


def _word(output: Created | Delta | ChoiceFinished | Terminal) -> str:
    if isinstance(output, Delta):
        return output.text
    if isinstance(output, ChoiceFinished):
        return f"finished:{output.reason}"
    return "created" if isinstance(output, Created) else f"{output.kind}:{output.reason}"


class PaperWorker:
    """Runs a script of tokens for every choice of one attempt, `lag` steps ahead of hearing a cancel.

    A token is text, bytes or an id; 257 and 259 end a choice, and so does `max_output`.
    """

    def __init__(
        self,
        drive: Drive,
        script: Sequence[str | bytes | int],
        stops: Sequence[str] = (),
        max_output: int = 100,
        logprobs: bool = False,
        lag: int = 0,
    ) -> None:
        self.drive = drive
        self.attempt = drive.machine.attempt
        texts = [token for token in script if not isinstance(token, int)]
        pieces = tuple(text.encode() if isinstance(text, str) else text for text in texts)
        numbers = iter(range(260, 260 + len(pieces)))
        self._ids = [token if isinstance(token, int) else next(numbers) for token in script] + [257]
        self._max_output, self._logprobs, self._lag = max_output, logprobs, lag
        self._texts = [
            ChoiceText(Detokenizer(ScriptedBytes(pieces)), StopStrings(stops) if stops else None)
            for _ in range(drive.observer.num_choices)
        ]
        self.generated = [0] * len(self._texts)
        self.ended = [False] * len(self._texts)
        self._cancels: dict[int, tuple[int, str]] = {}

    def step(self, choice: int = 0) -> None:
        """One engine step of one choice, or its final if it ended or heard of its cancel."""
        if self.ended[choice]:
            return
        self._hear()
        done = self.generated[choice]
        reason = "length" if done == self._max_output else "stop" if done and self._ids[done - 1] in (257, 259) else ""
        cancel = self._cancels.get(choice)
        if reason:
            tail = self._texts[choice].finish()
            self._end(choice, reason, "", tail)
        elif cancel is not None and done >= cancel[0] + self._lag:
            self._end(choice, "cancelled", cancel[1], TextStep(0, "", 0, (), None))
        else:
            self.generated[choice] += 1
            ids = (self._ids[done],)
            step = self._texts[choice].feed(ids, ids if self._logprobs else None)
            self.drive.feed(
                Tokens(self.attempt, choice, step.num_tokens, step.text, step.num_shown, step.logprobs, step.stop_at)
            )

    def run(self) -> None:
        """Until every choice ended."""
        while not all(self.ended):
            for choice in range(len(self.ended)):
                self.step(choice)

    def _hear(self) -> None:
        for cancel in self.drive.of(Cancel):
            choices = range(len(self.ended)) if cancel.choice < 0 else [cancel.choice]
            for choice in choices if cancel.attempt == self.attempt else []:
                self._cancels.setdefault(choice, (self.generated[choice], cancel.reason))

    def _end(self, choice: int, kind: str, reason: str, tail: TextStep) -> None:
        self.ended[choice] = True
        self.drive.feed(
            ChoiceFinal(
                self.attempt,
                choice,
                kind,
                reason,
                self.generated[choice],
                tail=tail.text,
                num_tail_shown=tail.num_shown,
                tail_logprobs=tail.logprobs,
            )
        )
