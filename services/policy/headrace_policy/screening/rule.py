"""One safety rule, compiled. Knows no tenant and no text."""

from dataclasses import dataclass

from headrace_policy.screening import injection, pii
from headrace_policy.screening.blocklist import Blocklist
from headrace_policy.screening.detector import Detector
from headrace_policy.screening.patterns import Pattern, Patterns
from headrace_policy.screening.repetition import Repetition

DETECTORS = ("blocklist", "regex", "pii", "injection", "repetition", "guard")
SIDES = ("input", "output", "both")
ACTIONS = ("block", "flag", "redact")


@dataclass(frozen=True)
class Definition:
    """A rule as it is declared; equal definitions are compiled once."""

    name: str
    detector: str
    side: str = "both"
    action: str = "block"
    values: tuple[str, ...] = ()
    fail_open: bool = False
    guard_model: str = ""
    replacement: str = "[redacted]"


@dataclass(frozen=True)
class Rule:
    """``detector`` is None for a guard rule: that one asks a model."""

    definition: Definition
    detector: Detector | None

    def reads(self, side: str) -> bool:
        """Redacting is for output only: a prompt is tokenized once, as it came."""
        on_side = self.definition.side in (side, "both")
        return on_side and not (side == "input" and self.definition.action == "redact")


def compile_rule(definition: Definition) -> Rule:
    """Raises ValueError naming the rule and what is wrong."""
    for field, known in (("detector", DETECTORS), ("side", SIDES), ("action", ACTIONS)):
        if getattr(definition, field) not in known:
            raise ValueError(f'rule "{definition.name}": {field} must be one of {", ".join(known)}')
    if definition.action == "redact" and (definition.side == "input" or definition.detector in ("repetition", "guard")):
        raise ValueError(f'rule "{definition.name}": this cannot be redacted, only blocked or flagged')
    if (definition.detector == "guard") != bool(definition.guard_model):
        raise ValueError(f'rule "{definition.name}": a guard rule needs a guard_model, and no other rule has one')
    try:
        return Rule(definition, _detector(definition))
    except ValueError as error:
        raise ValueError(f'rule "{definition.name}": {error}') from error


def _detector(definition: Definition) -> Detector | None:
    values = definition.values
    if definition.detector in ("blocklist", "regex") and not values:
        raise ValueError(f"a {definition.detector} rule needs at least one value")
    match definition.detector:
        case "blocklist":
            return Blocklist(values)
        case "regex":
            return Patterns([Pattern(value) for value in values])
        case "pii":
            return Patterns(pii.patterns(values))
        case "injection":
            return Patterns(injection.patterns(values))
        case "repetition":
            return Repetition(values)
        case _:
            return None
