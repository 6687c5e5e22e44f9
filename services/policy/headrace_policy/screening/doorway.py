"""What a prompt may say: the tenant's input rules over the whole text, before any reservation; the guard is last."""

import logging

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy.guard import Guard, GuardAwayError
from headrace_policy.screening.rule import Definition
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Screener

log = logging.getLogger(__name__)
_prompts = telemetry.counter("prompts_screened_total", "Prompts by what the input rules said", ["verdict"])
_away = telemetry.counter("guard_away_total", "Texts that no guard judged, by what became of them", ["outcome"])


class Doorway:
    """``check`` before every reservation."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def check(self, rules: Ruleset, text: str) -> str:
        """passed, flagged or nothing (no rule applies).

        Raises blocked_input naming the rule and no part of the text; policy_unavailable if a rule that fails closed
        asks a guard that is away, or one of output: the guard judges prompts only.
        """
        for rule in rules.guards:
            if rule.reads("output") and not rule.definition.fail_open:
                raise _closed(rule.definition, "the guard does not judge output")
        verdict = _read(rules, text)
        for rule in rules.guards:
            if rule.reads("input") and await self._judge(rule.definition, text):
                verdict = _act(rule.definition)
        if verdict:
            _prompts.labels(verdict).inc()
        return verdict

    async def _judge(self, definition: Definition, text: str) -> bool:
        try:
            return await self._guard.unsafe(definition.guard_model, text)
        except GuardAwayError as error:
            _away.labels("passed" if definition.fail_open else "refused").inc()
            log.warning("guard_away", extra={"rule": definition.name, "detail": str(error)})
            if not definition.fail_open:
                raise _closed(definition, str(error)) from error
            return False


def _read(rules: Ruleset, text: str) -> str:
    if not rules.input:
        return "passed" if rules.asks_guard_of_input else ""
    decision = Screener(rules.input).feed(text, final=True)
    if decision.verdict == "blocked":
        raise _blocked(decision.rule)
    return decision.verdict


def _act(definition: Definition) -> str:
    if definition.action == "block":
        raise _blocked(definition.name)
    return "flagged"


def _blocked(rule: str) -> HeadraceError:
    _prompts.labels("blocked").inc()
    return HeadraceError("blocked_input", f'the input breaks the rule "{rule}"', field="messages")


def _closed(definition: Definition, why: str) -> HeadraceError:
    return HeadraceError("policy_unavailable", f'the rule "{definition.name}" cannot run: {why}', retry_after_s=1.0)
