"""Numbers out of range are wrong usage with the flag's name, not a fault and not something else in silence."""

import pytest

from headrace_cli.__main__ import main


@pytest.mark.parametrize(
    "words",
    [
        ("fleet", "rollback", "99999999999999999999999"),
        ("fleet", "rollback", "1.5"),
        ("fleet", "show", "9" * 5000),
        ("fleet", "history", "-n", "99999999999"),
        # A key that was meant to end must not become one that never does.
        ("keys", "create", "dev", "--expires-in", "-5"),
        ("keys", "create", "dev", "--expires-in", "9223372036854775807"),
        ("logs", "gateway", "-n", "-5"),
        ("chat", "--max-tokens", "99999999999999999999", "hi"),
        ("chat", "--max-tokens", "٣", "hi"),
        ("chat", "--max-tokens=-5", "hi"),
    ],
)
def test_what_is_no_whole_number_is_wrong_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "no whole number" in capsys.readouterr().err


def test_bytes_that_are_no_text_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """What is no UTF-8 in argv comes as lone surrogates."""
    with pytest.raises(SystemExit) as ended:
        main(("chat", "--model", "scripted", "\udcff\udcfe"))
    assert ended.value.code == 2
    assert "not UTF-8" in capsys.readouterr().err
