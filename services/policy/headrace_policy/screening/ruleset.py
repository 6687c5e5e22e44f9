"""The rules of one tenant, by side. Compiled once for a snapshot, and shared by all texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace_policy.screening.rule import Definition, Rule, compile_rule

_SIDES = ("input", "output")


@dataclass(frozen=True)
class Ruleset:
    """``input`` and ``output`` in the order in which the tenant names its rules; the guards of a side ask a model."""

    input: tuple[Rule, ...] = ()
    output: tuple[Rule, ...] = ()
    input_guards: tuple[Rule, ...] = ()
    output_guards: tuple[Rule, ...] = ()

    @property
    def reads_input(self) -> bool:
        return bool(self.input or self.input_guards)

    @property
    def reads_output(self) -> bool:
        return bool(self.output or self.output_guards)

    @property
    def output_fails_open(self) -> bool:
        """Whether output may pass unscreened when policy is lost: only if every rule says so."""
        return all(rule.definition.fail_open for rule in (*self.output, *self.output_guards))


def compile_all(definitions: Iterable[Definition], known: Mapping[Definition, Rule]) -> dict[str, Rule]:
    """Rules by name; what ``known`` holds already is not compiled again. Raises ValueError."""
    rules: dict[str, Rule] = {}
    for definition in definitions:
        if definition.name in rules:
            raise ValueError(f'rule "{definition.name}" is there twice')
        rules[definition.name] = known.get(definition) or compile_rule(definition)
    return rules


def choose(rules: Mapping[str, Rule], names: Iterable[str]) -> Ruleset:
    """Raises ValueError for a name that is no rule."""
    chosen = []
    for name in names:
        if name not in rules:
            raise ValueError(f'there is no rule "{name}"')
        chosen.append(rules[name])
    readers = [rule for rule in chosen if rule.detector is not None]
    guards = [rule for rule in chosen if rule.detector is None]
    return Ruleset(*(tuple(rule for rule in kind if rule.reads(side)) for kind in (readers, guards) for side in _SIDES))
