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
