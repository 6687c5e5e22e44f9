"""Points in time of --from and --to."""

import pytest

from headrace_cli.platform.state_dir import CommandError
from headrace_cli.verbs.moments import span_ms


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [("2026-11-29", "2026-11-28", "--from: 2026-11-29 is after 2026-11-28"), ("9999-01-01", "", "is after now")],
)
def test_a_span_that_ends_before_it_begins_is_refused_in_the_words_of_the_flags(
    start: str, end: str, said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        span_ms(start, end)


def test_what_is_not_given_is_zero() -> None:
    assert span_ms("", "") == (0, 0)
    assert span_ms("1970-01-01T00:00:01+00:00", "1970-01-01T00:00:02") == (1000, 2000)
