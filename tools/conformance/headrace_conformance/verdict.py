"""What a rule says about a server: pass, fail or not applicable, and what it saw. Knows no rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Result = Literal["pass", "fail", "na"]
_MAX_EVIDENCE = 600


@dataclass(frozen=True)
class Verdict:
    """``evidence`` is one line: for a failure what was seen and where, for a pass what was looked at."""

    result: Result
    evidence: str


def passed(evidence: str) -> Verdict:
    return Verdict("pass", _line(evidence))


def failed(evidence: str) -> Verdict:
    return Verdict("fail", _line(evidence))


def na(evidence: str) -> Verdict:
    return Verdict("na", _line(evidence))


def judged(problems: Sequence[str], seen: str) -> Verdict:
    """Fails with the problems if there are any, else passes with what was looked at."""
    return failed("; ".join(problems)) if problems else passed(seen)


def combined(verdicts: Sequence[tuple[str, Verdict]], nothing: str) -> Verdict:
    """One verdict over several subjects: any failure fails, all not applicable is not applicable."""
    failures = [f"{name}: {one.evidence}" for name, one in verdicts if one.result == "fail"]
    passes = [name for name, one in verdicts if one.result == "pass"]
    if failures:
        return failed(f"{len(failures)} of {len(failures) + len(passes)}: " + " | ".join(failures))
    if passes:
        return passed(f"{len(passes)} looked at: {', '.join(passes)}")
    return na(verdicts[0][1].evidence if verdicts else nothing)


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_EVIDENCE else line[: _MAX_EVIDENCE - 1] + "…"
