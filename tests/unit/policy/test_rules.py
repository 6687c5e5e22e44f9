"""``policy check|test`` as their user sees them."""

import json
from pathlib import Path

import pytest

from headrace_policy import rules

FLEET = """
models: {}
safety:
  rules:
    fruit: {detector: blocklist, values: [persimmon]}
    mail: {detector: pii, values: [email], side: output, action: redact}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, "utf-8")
    return path


def test_check_explains_every_rule(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main(["check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "fruit: blocks 1 words or phrases on input and output; if it cannot run, text is refused",
        "mail: redacts email on output; if it cannot run, text is refused",
    ]


def test_test_shows_which_rule_fires_where(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "a persimmon for a@b.org"
    assert rules.main(["test", str(file), "--text", text, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["matches"]
    assert [(one["rule"], one["text"]) for one in found] == [("fruit", "persimmon"), ("mail", "a@b.org")]
    assert rules.main(["test", str(file), "--text", "a@b.org"]) == 0
    assert rules.main(["test", str(file), "--text", "a@b.org", "--side", "input"]) == 0
    assert capsys.readouterr().out.splitlines() == ["0-7 redact mail: 'a@b.org'", "no rule fires"]


def test_a_guard_is_not_asked_and_test_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("watch: {detector: guard, guard_model: m, side: output, fail_open: true}")
    assert rules.main(["check", str(path)]) == 0
    assert capsys.readouterr().out == (
        "watch: blocks what the model m calls unsafe on output; if it cannot run, text passes\n"
    )
    assert rules.main(["test", str(path), "--text", "anything"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("no rule fires\n", "not asked, for their models are not here: watch\n")
    assert rules.main(["test", str(path), "--text", "anything", "--side", "input"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[]", "holds no rules"),
        ("{", "cannot read"),
        ("a: {detector: regex, values: ['(']}", 'rule "a"'),
        ("a: {detector: regex, patterns: []}", "unknown field patterns"),
        ("a: {detector: regex, values: [1]}", "list of texts"),
        ("a: {detector: guard}", "needs a guard_model"),
        ("a: {detector: pii, guard_model: m}", "no other rule has one"),
        ("a: {detector: pii, fail_open: 3}", "true or false"),
        ("a: 3", "a map with a detector"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, content: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.yaml").write_text(content)
    assert rules.main(["check", str(tmp_path / "rules.yaml")]) == 2
    assert complaint in capsys.readouterr().err
