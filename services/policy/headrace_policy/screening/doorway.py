"""What a prompt may say: the tenant's input rules over the whole text, before anything is reserved."""

from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from headrace_policy.screening.ruleset import Ruleset
from headrace_policy.screening.screener import Screener

_prompts = telemetry.counter("prompts_screened_total", "Prompts by what the input rules said", ["verdict"])


def check_guards(rules: Ruleset) -> None:
    """Raises policy_unavailable if a rule that fails closed asks a guard model: no guard is served to policy yet."""
    for rule in rules.guards:
        if not rule.definition.fail_open:
            raise HeadraceError("policy_unavailable", f'the guard model of the rule "{rule.definition.name}" is away')


def check_prompt(rules: Ruleset, text: str) -> str:
    """passed, flagged or nothing (no rule applies); raises blocked_input naming the rule and no part of the text."""
    if not rules.input:
        return ""
    decision = Screener(rules.input).feed(text, final=True)
    _prompts.labels(decision.verdict).inc()
    if decision.verdict == "blocked":
        raise HeadraceError("blocked_input", f'the input breaks the rule "{decision.rule}"', field="messages")
    return decision.verdict
