"""What the guards of a tenant say of one text, and what follows when one of them is away. Knows no stream."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from headrace_kit import telemetry
from headrace_policy.guard import Guard, GuardAwayError
from headrace_policy.screening.rule import Definition, Rule

log = logging.getLogger(__name__)
_away = telemetry.counter("guard_away_total", "Texts that no guard judged, by what became of them", ["outcome"])


@dataclass(frozen=True)
class Opinion:
    """``verdict``: empty (nothing against it), flagged, blocked, or lost: a rule that fails closed could not ask."""

    verdict: str = ""
    rule: str = ""
    detail: str = ""


class Jury:
    """Asks one guard after the other, until one ends it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    @property
    def sits(self) -> bool:
        """Whether there is anybody to ask."""
        return self._guard.reachable

    async def hear(self, rules: Iterable[Rule], text: str) -> Opinion:
        flagged = Opinion()
        for rule in rules:
            opinion = await self._ask(rule.definition, text)
            if opinion.verdict in ("blocked", "lost"):
                return opinion
            flagged = flagged if flagged.verdict else opinion
        return flagged

    async def _ask(self, definition: Definition, text: str) -> Opinion:
        try:
            unsafe = await self._guard.unsafe(definition.guard_model, text)
        except GuardAwayError as error:
            _away.labels("passed" if definition.fail_open else "refused").inc()
            log.warning("guard_away", extra={"rule": definition.name, "detail": str(error)})
            return Opinion() if definition.fail_open else Opinion("lost", definition.name, str(error))
        if not unsafe:
            return Opinion()
        return Opinion("blocked" if definition.action == "block" else "flagged", definition.name)
