"""A stream of typed events as its JSON objects: /v1/responses and Anthropic's /v1/messages."""

from typing import Any

from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_text, an_object, parsed


class TypedStream:
    """``events[i]`` is the object of event i (empty if it is none), ``types[i]`` its type."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.events: list[dict[str, Any]] = [an_object(parsed(event.data)) for event in recording.events]
        self.types = [a_text(event.get("type")) for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("type") == kind]

    def first(self, *kinds: str) -> int | None:
        """Index of the first event of one of these types."""
        return next((at for at, kind in enumerate(self.types) if kind in kinds), None)
