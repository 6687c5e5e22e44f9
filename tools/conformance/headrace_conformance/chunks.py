"""A chat or completions stream as its chunks: one view for both, tolerant of everything that a rule complains about."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from headrace_conformance.recording import Event, Recording
from headrace_conformance.tolerant import a_list, a_text, an_object, parsed

Kind = Literal["chunk", "error", "done", "junk"]
DONE = "[DONE]"
# Visible or not, these carry output: a delta with one of them is not empty.
_OUTPUT = ("content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")


@dataclass(frozen=True)
class Piece:
    """What one chunk says about one choice; ``at`` is the index of its event."""

    at: int
    choice: int
    delta: dict[str, Any]
    finish: str | None
    logprobs: dict[str, Any] | None

    @property
    def role(self) -> bool:
        return "role" in self.delta

    @property
    def text(self) -> str:
        return a_text(self.delta.get("content"))

    @property
    def carries_output(self) -> bool:
        return any(self.delta.get(name) for name in _OUTPUT)


class ChunkStream:
    """``kinds[i]`` says what event i is; ``chunks[i]`` is its object if it is a chunk."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.kinds: list[Kind] = []
        self.chunks: dict[int, dict[str, Any]] = {}
        self.errors: list[dict[str, Any]] = []
        for at, event in enumerate(recording.events):
            self.kinds.append(self._read(at, event))
        self.pieces = tuple(self._pieces())

    @property
    def failed(self) -> bool:
        return bool(self.errors)

    @property
    def asked_for_usage(self) -> bool:
        return an_object(self.recording.request.get("stream_options")).get("include_usage") is True

    def usages(self) -> dict[int, dict[str, Any]]:
        """Event index to usage object, where there is one."""
        return {at: usage for at, chunk in self.chunks.items() if isinstance(usage := chunk.get("usage"), dict)}

    def choices(self) -> list[int]:
        """Indices that occur, in order of appearance."""
        return list(dict.fromkeys(piece.choice for piece in self.pieces))

    def of(self, choice: int) -> list[Piece]:
        return [piece for piece in self.pieces if piece.choice == choice]

    def text(self, choice: int = 0) -> str:
        return "".join(piece.text for piece in self.of(choice))

    def finish(self, choice: int = 0) -> str | None:
        """The last finish reason of a choice."""
        return next((piece.finish for piece in reversed(self.of(choice)) if piece.finish), None)

    def _read(self, at: int, event: Event) -> Kind:
        if event.data.strip() == DONE:
            return "done"
        content = parsed(event.data)
        if not isinstance(content, dict):
            return "junk"
        if content.get("error") is not None:
            self.errors.append(an_object(content["error"]))
            return "error"
        self.chunks[at] = content
        return "chunk"

    def _pieces(self) -> Iterator[Piece]:
        for at, chunk in self.chunks.items():
            for choice in map(an_object, a_list(chunk.get("choices"))):
                index, logprobs = choice.get("index"), choice.get("logprobs")
                delta = an_object(choice.get("delta")) if "delta" in choice else _as_delta(choice)
                yield Piece(
                    at,
                    index if isinstance(index, int) else -1,
                    delta,
                    choice.get("finish_reason") or None,
                    logprobs if isinstance(logprobs, dict) else None,
                )


def _as_delta(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of /v1/completions has its text beside the index."""
    return {"content": choice["text"]} if "text" in choice else {}
