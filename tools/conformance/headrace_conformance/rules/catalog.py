"""Every rule, in the order of a report."""

from collections.abc import Sequence

from headrace_conformance.rule import Rule
from headrace_conformance.rules import clients, errors, headers, invalid, limits, models, recorded, stop, text, usage
from headrace_conformance.rules.control import RULES as CONTROL_RULES

HTTP_RULES: tuple[Rule, ...] = (
    *recorded.RULES,
    *text.RULES,
    *stop.RULES,
    *usage.RULES,
    *limits.RULES,
    *headers.RULES,
    *models.RULES,
    *errors.RULES,
    *invalid.RULES,
    *clients.RULES,
)


def chosen_rules(*, grpc: bool, control: bool, only: Sequence[str]) -> list[Rule]:
    """The rules of a run; ``only`` keeps those whose id begins with one of the prefixes."""
    rules = list(HTTP_RULES)
    if grpc:
        from headrace_conformance.rules.grpc_stream import RULES as GRPC_RULES

        rules += GRPC_RULES
    if control:
        rules += CONTROL_RULES
    return [rule for rule in rules if not only or rule.id.startswith(tuple(only))]
