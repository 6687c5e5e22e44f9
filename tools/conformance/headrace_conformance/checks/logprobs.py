"""Log-probabilities of a chat stream against the text that they belong to."""

from typing import Any

from headrace_conformance.checks.check import CHAT, Check
from headrace_conformance.chunks import ChunkStream, Piece
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_list, a_text, an_object
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

Entry = dict[str, Any]


def entries_of(piece: Piece) -> list[Entry]:
    """Entries of the visible text, then of a refusal."""
    found = piece.logprobs or {}
    return [an_object(one) for name in ("content", "refusal") for one in a_list(found.get(name))]


def aligned(recording: Recording) -> Verdict:
    stream, problems = ChunkStream(recording), []
    if recording.request.get("logprobs") is not True:
        return na("log-probabilities were not asked for")
    if stream.failed:
        return na("the stream failed")
    for choice in stream.choices():
        pieces = stream.of(choice)
        text = "".join(piece.text + a_text(piece.delta.get("refusal")) for piece in pieces)
        entries = [entry for piece in pieces for entry in entries_of(piece)]
        if b"".join(map(_bytes, entries)) != text.encode("utf-8", "replace"):
            tokens = [entry.get("token") for entry in entries]
            problems.append(f"choice {choice}: tokens {tokens} do not spell {text!r}")
    return judged(problems, "the tokens with log-probabilities spell the text") if stream.pieces else na("no choice")


def in_range(recording: Recording) -> Verdict:
    top = recording.request.get("top_logprobs") or 0
    entries = [entry for piece in ChunkStream(recording).pieces for entry in entries_of(piece)]
    for entry in entries:
        if problem := _problem(entry, top):
            return failed(f"token {entry.get('token')!r}: {problem}")
    return passed(f"{len(entries)} entries, each at most 0 and with its alternatives") if entries else na("no entry")


def none_at_the_end(recording: Recording) -> Verdict:
    ends = [piece for piece in ChunkStream(recording).pieces if piece.finish and not piece.carries_output]
    problems = [f"event {piece.at} has entries beside {piece.finish!r}" for piece in ends if entries_of(piece)]
    return judged(problems, "no entry beside a finish reason") if ends else na("no finish reason")


def _bytes(entry: Entry) -> bytes:
    raw = entry.get("bytes")
    if isinstance(raw, list) and all(type(one) is int and 0 <= one < 256 for one in raw):
        return bytes(raw)
    return a_text(entry.get("token")).encode("utf-8", "replace")


def _problem(entry: Entry, num_top: int) -> str:
    alternatives = [_value(an_object(one)) for one in a_list(entry.get("top_logprobs"))]
    if not _value(entry) <= 0:
        return f"logprob is {entry.get('logprob')!r}"
    if len(alternatives) > num_top:
        return f"{len(alternatives)} alternatives, {num_top} asked for"
    if not all(value <= 0 for value in alternatives):
        return f"alternatives {alternatives}"
    return "" if alternatives == sorted(alternatives, reverse=True) else f"alternatives not best first: {alternatives}"


def _value(entry: Entry) -> float:
    """NaN where there is no number: no comparison holds then."""
    value = entry.get("logprob")
    return float(value) if isinstance(value, int | float) else float("nan")


CHECKS = (
    Check("logprobs.aligned", "The tokens with log-probabilities spell exactly the text of the stream",
          "a score that belongs to another token is worse than none", CHAT, aligned),
    Check("logprobs.range", "A log-probability is at most 0; alternatives come best first, as many as asked for",
          "whoever sums them up gets nonsense otherwise", CHAT, in_range),
    Check("logprobs.not-at-the-end", "No log-probability travels beside a finish reason",
          "an empty delta has no token", CHAT, none_at_the_end),
)  # fmt: skip
