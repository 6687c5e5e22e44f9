"""``python -m headrace_policy.rules check|test FILE``: validates and explains safety rules, shows what fires where.

FILE is YAML: a fleet file, or its section ``safety`` alone, or a map of rules alone. Starts nothing and asks nobody.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from headrace_policy.screening.detector import Window
from headrace_policy.screening.rule import Definition, Rule, compile_rule

_FIELDS = ("detector", "side", "action", "values", "fail_open", "guard_model", "replacement")


class RuleFileError(ValueError):
    """One sentence for the file's author."""


def read(path: Path) -> list[Rule]:
    """Every rule of the file, compiled; raises RuleFileError."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RuleFileError(f"cannot read {path}: {error}") from error
    for section in ("safety", "rules"):
        if isinstance(content, dict) and section in content:
            content = content[section]
    if not isinstance(content, dict) or not content:
        raise RuleFileError(f"{path} holds no rules: expected a map from names to rules")
    return [_rule(str(name), row) for name, row in content.items()]


def explain(rule: Rule) -> str:
    """One line for a person."""
    definition = rule.definition
    sides = [side for side in ("input", "output") if rule.reads(side)]
    what = {
        "blocklist": f"{len(definition.values)} words or phrases",
        "regex": f"{len(definition.values)} patterns",
        "pii": ", ".join(definition.values) or "every kind of personal data",
        "injection": "phrases of injection and jailbreaks",
        "repetition": "text in a loop",
        "guard": f"what the model {definition.guard_model} calls unsafe",
    }[definition.detector]
    failing = "passes" if definition.fail_open else "is refused"
    return f"{definition.name}: {definition.action}s {what} on {' and '.join(sides)}; if it cannot run, text {failing}"


def fires(rules: Sequence[Rule], text: str, side: str) -> list[dict[str, object]]:
    """Every match of every rule that reads this side, in the order of the text."""
    found: list[dict[str, object]] = []
    for rule in rules:
        if rule.detector is None or not rule.reads(side):
            continue
        for start, end in rule.detector.open().scan(Window(text, 0, final=True)).matches:
            definition = rule.definition
            found.append(
                {
                    "start": start,
                    "end": end,
                    "rule": definition.name,
                    "action": definition.action,
                    "text": text[start:end],
                }
            )
    return sorted(found, key=lambda one: (one["start"], one["end"]))


def main(argv: Sequence[str] | None = None) -> int:
    """0: fine, and no blocking rule fired; 1: one did; 2: the file cannot be used."""
    about = "Validates and explains safety rules, and shows what fires where."
    parser = argparse.ArgumentParser(prog="headrace policy", description=about)
    verbs = parser.add_subparsers(dest="verb", required=True)
    check, test = verbs.add_parser("check", help="validate and explain"), verbs.add_parser("test", help="show matches")
    for verb in (check, test):
        verb.add_argument("file", type=Path)
        verb.add_argument("--json", action="store_true")
    test.add_argument("--text", required=True)
    test.add_argument("--side", choices=("input", "output"), default="output")
    given = parser.parse_args(argv)
    try:
        rules = read(given.file)
    except RuleFileError as error:
        print(error, file=sys.stderr)
        return 2
    return _check(rules, given) if given.verb == "check" else _test(rules, given)


def _check(rules: list[Rule], given: argparse.Namespace) -> int:
    lines = [explain(rule) for rule in rules]
    print(json.dumps({"rules": lines}) if given.json else "\n".join(lines))
    return 0


def _test(rules: list[Rule], given: argparse.Namespace) -> int:
    found = fires(rules, given.text, given.side)
    unasked = [rule.definition.name for rule in rules if rule.detector is None and rule.reads(given.side)]
    if unasked:
        print(f"not asked, for their models are not here: {', '.join(unasked)}", file=sys.stderr)
    if given.json:
        print(json.dumps({"matches": found, "not_asked": unasked}))
    else:
        lines = [f"{one['start']}-{one['end']} {one['action']} {one['rule']}: {one['text']!r}" for one in found]
        print("\n".join(lines) or "no rule fires")
    return 1 if any(one["action"] == "block" for one in found) else 0


def _rule(name: str, row: Any) -> Rule:
    if not isinstance(row, dict) or "detector" not in row:
        raise RuleFileError(f'rule "{name}": expected a map with a detector')
    if unknown := sorted(set(row) - set(_FIELDS)):
        raise RuleFileError(f'rule "{name}": unknown field {unknown[0]}')
    values = row.get("values", [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RuleFileError(f'rule "{name}": values must be a list of texts')
    if not isinstance(row.get("fail_open", False), bool):
        raise RuleFileError(f'rule "{name}": fail_open must be true or false')
    try:
        return compile_rule(Definition(name, **{**row, "values": tuple(values)}))
    except ValueError as error:
        raise RuleFileError(str(error)) from error


if __name__ == "__main__":
    raise SystemExit(main())
