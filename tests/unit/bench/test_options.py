"""Words that cannot be are refused before anything is sent."""

from pathlib import Path

import pytest

from headrace_bench.options import parse


@pytest.mark.parametrize("flag", ["--html", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["http://127.0.0.1:1", flag, str(tmp_path / "absent" / "report")])
    assert ended.value.code == 2
    assert f"argument {flag}: cannot be written" in capsys.readouterr().err


def test_a_file_that_is_there_keeps_its_text_until_the_run_is_over(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("before")
    assert parse(["http://127.0.0.1:1", "--html", str(path)]).html == path
    assert path.read_text() == "before"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--prompt-tokens", "abc"), "argument --prompt-tokens: expected a whole number from 1 up, got abc"),
        (("--output-tokens", "0"), "argument --output-tokens: expected a whole number from 1 up, got 0"),
        (("--rate", "fast"), "argument --rate: expected a number above 0, got fast"),
        (("--rate", "nan"), "argument --rate: expected a number above 0, got nan"),
        (("--cv", ""), "argument --cv: expected a number from 0 up, got "),
    ],
)
def test_what_is_no_number_is_told_what_is_expected(
    words: tuple[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["http://127.0.0.1:1", *words])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err
