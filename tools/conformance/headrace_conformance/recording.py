"""One recorded exchange: what was asked and every event that came back. Checks see nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Surface = Literal["chat", "completions", "responses", "messages"]


@dataclass(frozen=True)
class Event:
    """One server-sent event: its ``event:`` name (empty if none), its data, seconds since the request was sent."""

    data: str
    name: str = ""
    at_s: float = 0.0


@dataclass(frozen=True)
class Recording:
    """``ended``: the transport closed in order. ``framed``: false where only the JSON of the events was kept, so that
    event names, ``[DONE]`` and headers cannot be judged. ``faults``: what was wrong with the bytes.
    """

    name: str
    surface: Surface
    request: Mapping[str, Any]
    events: tuple[Event, ...]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = True
    framed: bool = True
    faults: tuple[str, ...] = ()

    @property
    def streamed(self) -> bool:
        """Whether this is a stream that was opened: a refusal is not."""
        return self.status == 200 and self.request.get("stream") is True

    @property
    def num_choices(self) -> int:
        n = self.request.get("n")
        return n if isinstance(n, int) else 1
