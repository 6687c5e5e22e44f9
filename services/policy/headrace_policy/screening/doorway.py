"""What a prompt may say: the tenant's input rules over the whole text, before any reservation; guards are last."""

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy.screening.jury import Jury
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Screener

_prompts = telemetry.counter("prompts_screened_total", "Prompts by what the input rules said", ["verdict"])


class Doorway:
    """``check`` before every reservation."""

    def __init__(self, jury: Jury) -> None:
        self._jury = jury

    async def check(self, rules: Ruleset, text: str) -> str:
        """passed, flagged or nothing (no rule applies).

        Raises blocked_input naming the rule and no part of the text; policy_unavailable if a rule that fails closed
        asks a guard that is away, or would of output where no guard was configured.
        """
        for rule in rules.output_guards:
            if not self._jury.sits and not rule.definition.fail_open:
                raise _closed(rule.definition.name, "no guard_gateway is configured")
        verdict = _read(rules, text)
        if rules.input_guards:
            opinion = await self._jury.hear(rules.input_guards, text)
            if opinion.verdict == "blocked":
                raise _blocked(opinion.rule)
            if opinion.verdict == "lost":
                raise _closed(opinion.rule, opinion.detail)
            verdict = opinion.verdict or verdict
        if verdict:
            _prompts.labels(verdict).inc()
        return verdict


def _read(rules: Ruleset, text: str) -> str:
    if not rules.input:
        return "passed" if rules.input_guards else ""
    decision = Screener(rules.input).feed(text, final=True)
    if decision.verdict == "blocked":
        raise _blocked(decision.rule)
    return decision.verdict


def _blocked(rule: str) -> HeadraceError:
    _prompts.labels("blocked").inc()
    return HeadraceError("blocked_input", f'the input breaks the rule "{rule}"', field="messages")


def _closed(rule: str, why: str) -> HeadraceError:
    return HeadraceError("policy_unavailable", f'the rule "{rule}" cannot run: {why}', retry_after_s=1.0)
