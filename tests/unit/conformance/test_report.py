"""What a run leaves behind: a table, JSON, JUnit, and an exit code that a CI can trust."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headrace_conformance import report
from headrace_conformance.__main__ import main
from headrace_conformance.rule import Rule
from headrace_conformance.rules.catalog import HTTP_RULES, chosen_rules
from headrace_conformance.runner import Outcome
from headrace_conformance.target import Target
from headrace_conformance.verdict import Verdict, combined, failed, na, passed
from tests.unit.conformance.reference.server import API_KEY, ReferenceServer, serving


async def _never(_: Target) -> Verdict:
    raise AssertionError("not run here")


def outcome(name: str, verdict: Verdict) -> Outcome:
    return Outcome(Rule(name, f"title of {name}", f"reason of {name}", _never), verdict, 0.25)


OUTCOMES = [
    outcome("a.one", passed("seen")),
    outcome("a.two", failed("bad\x00 byte")),
    outcome("b.three", na("absent")),
]


Server = tuple[ReferenceServer, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    reference = ReferenceServer()
    with serving(reference.app()) as origin:
        yield reference, origin


@dataclass
class Ended:
    """What the command left behind."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process: importing it anew costs more than most of its runs."""

    def call(*words: str) -> Ended:
        code: int | str | None = 0
        try:
            main(words)
        except SystemExit as end:
            code = end.code
        output = capsys.readouterr()
        return Ended(1, output.out, code) if isinstance(code, str) else Ended(int(code or 0), output.out, output.err)

    return call


def test_json_has_the_four_fields_of_every_rule() -> None:
    rows = json.loads(report.as_json(OUTCOMES))["rules"]
    assert [set(row) for row in rows] == [{"id", "title", "result", "evidence"}] * 3
    assert [row["result"] for row in rows] == ["pass", "fail", "na"]


def test_junit_counts_failures_and_skips_and_survives_any_byte() -> None:
    suite = ElementTree.fromstring(report.as_junit(OUTCOMES))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.text == "bad\ufffd byte\nreason of a.two"


def test_a_failure_shows_what_was_seen_and_why_it_matters() -> None:
    text = report.line(OUTCOMES[1], 8)
    assert "saw: bad" in text and "why: reason of a.two" in text


def test_one_failure_among_many_subjects_fails_and_names_it() -> None:
    verdict = combined([("x", passed("fine")), ("y", failed("broken")), ("z", na("-"))], "nothing")
    assert verdict == failed("1 of 2: y: broken")
    assert combined([("z", na("why"))], "nothing") == na("why")


def test_a_passing_run_exits_with_zero(server: Server, command: Command, tmp_path: Path) -> None:
    server[0].fault = ""
    junit = tmp_path / "junit.xml"
    result = command(f"{server[1]}/v1", "--api-key", API_KEY, "--only", "stream.", "--json", "--junit", str(junit))
    assert result.returncode == 0, result.stdout + result.stderr
    assert {row["result"] for row in json.loads(result.stdout)["rules"]} == {"pass"}
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_a_failing_rule_exits_with_one(server: Server, command: Command) -> None:
    server[0].fault = "no_terminal"
    result = command(server[1], "--api-key", API_KEY, "--only", "stream.ends")
    assert result.returncode == 1
    assert result.stdout.startswith("FAIL  stream.ends")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("http://127.0.0.1:1", "--model", "m"), "does not answer"),
        (("{origin}", "--api-key", "sk-wrong"), "--model is needed: GET /v1/models gives status 401"),
        (("{origin}", "--api-key", "sk-wrong", "--model", "m"), "is answered with status 401"),
    ],
)
def test_a_server_that_cannot_be_tested_is_one_sentence(
    server: Server, command: Command, words: tuple[str, ...], sentence: str
) -> None:
    server[0].fault = ""
    result = command(*(word.format(origin=server[1]) for word in words))
    assert result.returncode == 1
    assert sentence in result.stderr and "Traceback" not in result.stderr


def test_rules_have_unique_ids_titles_and_reasons_and_there_are_enough() -> None:
    rules = chosen_rules(grpc=True, control=True, only=[])
    assert len({rule.id for rule in rules}) == len(rules) >= 40
    assert all(rule.title and rule.reason and "." in rule.id for rule in rules)
    assert {"grpc", "control"} <= {rule.family for rule in rules}
    assert {rule.family for rule in HTTP_RULES} & {"grpc", "control"} == set()


def test_the_module_is_a_command_and_lists_its_rules_without_a_server() -> None:
    line = [sys.executable, "-m", "headrace_conformance", "http://127.0.0.1:1", "--list", "--grpc", "a:1", "--control"]
    result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0
    assert "control.redis" in result.stdout and "grpc.terminal" in result.stdout
