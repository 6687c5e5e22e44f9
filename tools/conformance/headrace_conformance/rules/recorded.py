"""The pure checks as rules over the streams recorded from the server."""

from headrace_conformance.checks.catalog import CHECKS
from headrace_conformance.checks.check import Check
from headrace_conformance.rule import Rule
from headrace_conformance.target import Target
from headrace_conformance.verdict import Verdict


def _rule(check: Check) -> Rule:
    async def probe(target: Target) -> Verdict:
        return check.over(target.recordings)

    return Rule(check.id, check.title, check.reason, probe)


RULES = tuple(map(_rule, CHECKS))
