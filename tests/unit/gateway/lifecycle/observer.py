"""Watches the outputs of one machine and states the promises of the contract, each as one assertion."""

from __future__ import annotations

from headrace_gateway.lifecycle import Response
from headrace_gateway.lifecycle.events import AttemptLost, AttemptRefused, ChoiceFinal, Event
from headrace_gateway.lifecycle.outputs import (
    Ack,
    Cancel,
    ChoiceFinished,
    Created,
    Delta,
    Output,
    Refusal,
    Report,
    Route,
    Settle,
    Submit,
    Terminal,
)

CLIENT_EVENTS = (Created, Delta, ChoiceFinished, Terminal)


class Observer:
    """What the outside world saw so far of one response with `num_choices` choices."""

    __slots__ = (
        "created",
        "ended",
        "finished",
        "num_choices",
        "num_events",
        "open_choices",
        "routing",
        "settled",
        "shown",
        "unacked",
        "unreported",
    )

    def __init__(self, num_choices: int) -> None:
        self.num_choices = num_choices
        self.num_events = 0
        self.created = False
        self.ended = False
        self.settled = False
        self.shown = False
        self.finished: frozenset[int] = frozenset()
        self.routing: frozenset[int] = frozenset()
        self.unreported: frozenset[int] = frozenset()
        self.unacked: frozenset[tuple[int, int]] = frozenset()
        self.open_choices: frozenset[tuple[int, int]] = frozenset()

    def fork(self) -> Observer:
        twin = object.__new__(Observer)
        for name in Observer.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def hear(self, event: Event) -> None:
        """What an event tells the world by itself: a worker that refused, lost or ended needs no cancel."""
        if isinstance(event, AttemptRefused | AttemptLost):
            self.open_choices = frozenset(one for one in self.open_choices if one[0] != event.attempt)
        elif isinstance(event, ChoiceFinal):
            self.open_choices -= {(event.attempt, event.choice)}

    def final_arrived(self, attempt: int, choice: int) -> None:
        """A final that the machine did not have: it must be acknowledged, at the latest at the end."""
        self.unacked |= {(attempt, choice)}

    def answered(self, attempt: int, routed: bool) -> None:
        """The router's answer goes in: a decision must be reported from now on."""
        assert attempt in self.routing, "the world answers only what was asked"
        self.routing -= {attempt}
        if routed:
            self.unreported |= {attempt}

    def see(self, outputs: list[Output], response: Response) -> None:
        for output in outputs:
            self._see(output)
        assert self.ended == response.ended, "the machine and its client disagree on whether it ended"
        if self.ended:
            assert not self.open_choices, f"submitted, neither ended nor cancelled: {self.open_choices}"
            assert not self.unacked, f"finals in the books but never acknowledged: {self.unacked}"
        if self.ended and not self.routing:
            assert response.done, "nothing is awaited, yet it is not done"
            assert not self.unreported, "a route decision was never reported"

    def _see(self, output: Output) -> None:
        if self.ended:
            assert isinstance(output, Report | Ack), f"{output} after the end"
        if isinstance(output, CLIENT_EVENTS):
            self._client(output)
        elif isinstance(output, Refusal):
            assert not self.created, "a status after created"
            self.ended = True
        elif isinstance(output, Settle):
            assert not self.settled, "settled twice"
            output.settlement.check()
            assert output.settlement.created == self.created
            self.settled = True
        else:
            self._platform(output)

    def _platform(self, output: Output) -> None:
        if isinstance(output, Route):
            assert not self.routing, "two routes at once"
            assert not self.shown, "another attempt after the client saw output"
            self.routing |= {output.attempt}
        elif isinstance(output, Report):
            assert output.attempt in self.unreported, "reported twice, or never decided"
            self.unreported -= {output.attempt}
        elif isinstance(output, Submit):
            assert not self.open_choices, "submitted while an older attempt still runs"
            self.open_choices |= {(output.attempt, index) for index in range(self.num_choices)}
        elif isinstance(output, Cancel):
            ended = range(self.num_choices) if output.choice < 0 else (output.choice,)
            self.open_choices -= {(output.attempt, index) for index in ended}
        elif isinstance(output, Ack):
            self.unacked = frozenset(one for one in self.unacked if one[0] != output.attempt)

    def _client(self, output: Output) -> None:
        assert isinstance(output, CLIENT_EVENTS)
        assert output.sequence_number == self.num_events, f"a gap before {output}"
        self.num_events += 1
        assert isinstance(output, Created) == (not self.created), f"{output} and created={self.created}"
        self.created = True
        if isinstance(output, Delta):
            self.shown = True
            assert output.text, "an empty delta"
            assert output.choice not in self.finished, "text of a finished choice"
        elif isinstance(output, ChoiceFinished):
            self.shown = True
            assert output.choice not in self.finished, "a choice finished twice"
            self.finished |= {output.choice}
        elif isinstance(output, Terminal):
            assert self.settled, "the terminal came before the settlement"
            whole = len(self.finished) == self.num_choices
            assert whole or output.kind in ("failed", "cancelled"), f"{output.kind} with an unfinished choice"
            self.ended = True
