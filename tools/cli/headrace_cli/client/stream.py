"""What both clients know of a stream: it is checked event by event, and it ends in exactly one terminal or not at all.

Knows no transport.
"""

from collections.abc import Callable

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import response_pb2
from headrace_kit.errors import HeadraceError, ResponseCancelled, ResponseFailed

TERMINALS = ("completed", "incomplete", "failed", "cancelled")


class StreamBroken(Exception):
    """The transport ended before the terminal, or the events were out of order: how the response ended is unknown.

    The platform settles such a response by itself (as failed{gateway_lost} if its gateway died); sending the request
    again with ``retry_of`` = ``response_id`` links the two. ``response_id`` is empty if nothing had arrived.
    """

    def __init__(self, response_id: str, num_events: int, cause: str) -> None:
        super().__init__(f"stream {response_id or '(not created)'} broke after {num_events} events: {cause}")
        self.response_id, self.num_events = response_id, num_events


class StreamCursor:
    """Follows one stream: ``texts`` grows per choice, ``terminal`` is the event that ended it (None while it runs)."""

    def __init__(self) -> None:
        self.response_id = ""
        self.num_events = 0
        self.texts: dict[int, str] = {}
        self.finish_reasons: dict[int, str] = {}
        self.created: pb.Created | None = None
        self.terminal: pb.ResponseEvent | None = None

    def accept(self, event: pb.ResponseEvent) -> pb.ResponseEvent:
        """Checks and records one event; raises StreamBroken if it breaks the contract."""
        kind = event.WhichOneof("event")
        self._check(event, kind)
        self.num_events += 1
        if kind == "created":
            self.response_id, self.created = event.response_id, event.created
        elif kind == "delta":
            self.texts[event.delta.choice] = self.texts.get(event.delta.choice, "") + event.delta.text
        elif kind == "choice_finished":
            self.finish_reasons[event.choice_finished.choice] = event.choice_finished.reason
        elif kind in TERMINALS:
            self.terminal = event
        return event

    def end(self) -> None:
        """The transport ended well: that is only right behind a terminal."""
        if self.terminal is None:
            raise self._broken("no terminal event arrived")

    def failure(self, to_error: Callable[[], HeadraceError]) -> Exception:
        """What the end of the transport with a status means: a refusal before `created`, a broken stream after it."""
        error = to_error()
        if self.created is None and error.reason != "gateway_lost":
            return error
        return self._broken(error.message)

    @property
    def kind(self) -> str:
        """completed, incomplete, failed or cancelled; empty while it runs."""
        return (self.terminal.WhichOneof("event") or "") if self.terminal is not None else ""

    @property
    def usage(self) -> response_pb2.Usage | None:
        """What the response used, once it ended."""
        return getattr(self.terminal, self.kind).usage if self.terminal is not None else None

    def raise_for_terminal(self) -> None:
        """Raises ResponseFailed or ResponseCancelled if that is how the response ended."""
        if self.terminal is not None and self.kind == "failed":
            failed = self.terminal.failed
            raise ResponseFailed(failed.reason, failed.message, details={"response_id": self.response_id})
        if self.terminal is not None and self.kind == "cancelled":
            reason = self.terminal.cancelled.reason
            raise ResponseCancelled(reason, "the response was cancelled", details={"response_id": self.response_id})

    def _check(self, event: pb.ResponseEvent, kind: str | None) -> None:
        if self.terminal is not None:
            raise self._broken(f"{kind} arrived after the terminal")
        if event.sequence_number != self.num_events:
            raise self._broken(f"event {event.sequence_number} arrived in place of {self.num_events}")
        if (kind == "created") != (self.num_events == 0):
            raise self._broken(f"{kind} arrived as event {self.num_events}")
        if self.response_id and event.response_id != self.response_id:
            raise self._broken(f"an event of {event.response_id} arrived")

    def _broken(self, cause: str) -> StreamBroken:
        return StreamBroken(self.response_id, self.num_events, cause)
