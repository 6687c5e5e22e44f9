"""A rule: an id, what must hold, why it matters, and how to find out."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace_conformance.target import Target
from headrace_conformance.verdict import Verdict

Probe = Callable[[Target], Awaitable[Verdict]]


@dataclass(frozen=True)
class Rule:
    """``id`` is ``family.name``; ``timeout_s`` bounds the probe: a rule that cannot be decided in time has failed."""

    id: str
    title: str
    reason: str
    probe: Probe
    timeout_s: float = 60.0

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]
