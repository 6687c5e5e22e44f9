"""Outcomes for people, for programs and for a CI."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from headrace_conformance.runner import Outcome

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def line(outcome: Outcome, width: int) -> str:
    """One row of the table; the reason of the rule is under a failure."""
    verdict = outcome.verdict
    row = f"{verdict.result.upper():4}  {outcome.rule.id:{width}}  {outcome.rule.title}"
    if verdict.result == "fail":
        return f"{row}\n      {'':{width}}  saw: {verdict.evidence}\n      {'':{width}}  why: {outcome.rule.reason}"
    return f"{row}\n      {'':{width}}  {verdict.evidence}" if verdict.result == "na" else row


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.verdict.result for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return (f"{len(outcomes)} rules: {counts['pass']} pass, {counts['fail']} fail, {counts['na']} not applicable "
            f"({seconds:.1f} s)")  # fmt: skip


def as_json(outcomes: Sequence[Outcome]) -> str:
    rows = [
        {
            "id": outcome.rule.id,
            "title": outcome.rule.title,
            "result": outcome.verdict.result,
            "evidence": outcome.verdict.evidence,
        }
        for outcome in outcomes
    ]
    return json.dumps({"rules": rows}, indent=2, ensure_ascii=False)


def as_junit(outcomes: Sequence[Outcome]) -> str:
    """One suite, one case per rule; not applicable is skipped."""
    counts = Counter(outcome.verdict.result for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite", name="headrace-conformance", tests=str(len(outcomes)), failures=str(counts["fail"]),
        skipped=str(counts["na"]), errors="0", time=f"{sum(one.seconds for one in outcomes):.3f}",
    )  # fmt: skip
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"conformance.{outcome.rule.family}", name=outcome.rule.id,
            time=f"{outcome.seconds:.3f}",
        )  # fmt: skip
        evidence = _NOT_XML.sub("\ufffd", outcome.verdict.evidence)
        if outcome.verdict.result == "fail":
            failure = ElementTree.SubElement(case, "failure", message=outcome.rule.title)
            failure.text = f"{evidence}\n{outcome.rule.reason}"
        elif outcome.verdict.result == "na":
            ElementTree.SubElement(case, "skipped", message=evidence)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
