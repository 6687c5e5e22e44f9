"""A check: a rule that one recording can decide by itself."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace_conformance.recording import Recording, Surface
from headrace_conformance.verdict import Verdict, combined, na

CHUNKED: tuple[Surface, ...] = ("chat", "completions")
CHAT: tuple[Surface, ...] = ("chat",)
RESPONSES: tuple[Surface, ...] = ("responses",)
MESSAGES: tuple[Surface, ...] = ("messages",)
EVERY: tuple[Surface, ...] = (*CHUNKED, *RESPONSES, *MESSAGES)


@dataclass(frozen=True)
class Check:
    """``judge`` sees only recordings of its surfaces that are streams which were opened."""

    id: str
    title: str
    reason: str
    surfaces: tuple[Surface, ...]
    judge: Callable[[Recording], Verdict]

    def over(self, recordings: Iterable[Recording]) -> Verdict:
        """One verdict over many streams."""
        seen = [(one.name, self.of(one)) for one in recordings if one.surface in self.surfaces]
        return combined(seen, f"no stream of {' or '.join(self.surfaces)} could be opened")

    def of(self, recording: Recording) -> Verdict:
        """The verdict over one stream."""
        if not recording.streamed:
            return na(f"status {recording.status}: no stream was opened")
        return self.judge(recording)
