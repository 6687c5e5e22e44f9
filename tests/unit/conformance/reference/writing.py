"""Tokens to deltas: whole characters only, stop strings held back while they form and cut when they are there."""

import codecs
from dataclasses import dataclass, field
from typing import Any

from tests.unit.conformance.reference.playing import Play


@dataclass
class Text:
    """``deltas[i]`` is (seconds before it, its text, its log-probability entries)."""

    deltas: list[tuple[float, str, list[dict[str, Any]]]] = field(default_factory=list)
    reason: str = "stop"
    failed: bool = False
    num_tokens: int = 0


def write(play: Play, stops: list[str], fault: str = "") -> Text:
    result, held = Text(reason=play.reason, failed=play.failed), ""
    if fault == "length_at_the_end" and len(play.tokens) == play.limit:
        result.reason = "length"
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    waited_s, pending = 0.0, list[dict[str, Any]]()
    for delay_s, piece in play.tokens:
        result.num_tokens += 1
        waited_s += delay_s
        held += piece.decode("utf-8", "replace") if fault == "split_characters" else decoder.decode(piece)
        if piece:
            pending.append(_entry(piece))
        at = _first_stop(held, stops)
        ready = held[:at] if at is not None else held[: len(held) - _num_forming(held, stops, fault)]
        held = "" if at is not None else held[len(ready) :]
        if ready:
            result.deltas.append((waited_s, ready, pending))
            waited_s, pending = 0.0, []
        if at is not None:
            result.reason, held = "stop", ""
            result.num_tokens -= fault == "counts_delivered"
            return result
    held += decoder.decode(b"", final=True)
    if held and not play.failed and fault != "held_text_lost":
        result.deltas.append((waited_s, held, pending))
    return result


def _first_stop(text: str, stops: list[str]) -> int | None:
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _num_forming(text: str, stops: list[str], fault: str) -> int:
    """Length of the longest end of the text that may become a stop string."""
    if fault == "stop_leaks":
        return 0
    ends = (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
    return max(ends, default=0)


def _entry(piece: bytes) -> dict[str, Any]:
    entry = {"token": piece.decode("utf-8", "replace"), "logprob": -0.25, "bytes": list(piece)}
    return {**entry, "top_logprobs": [dict(entry)]}
