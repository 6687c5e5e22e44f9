"""What the command says of an error: its field, unless the message has it, and when to come back."""

import pytest

from headrace_cli.__main__ import told
from headrace_kit.errors import HeadraceError


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (HeadraceError("invalid_argument", "is not known", field="tenant"), "invalid_argument: tenant: is not known"),
        (HeadraceError("invalid_argument", "n must be 1", field="n"), "invalid_argument: n must be 1"),
        (HeadraceError("rpm", "0 left", retry_after_s=18.2), "rpm: 0 left; try again in 19 s"),
        (HeadraceError("engine_error", "it broke"), "engine_error: it broke"),
    ],
)
def test_it_is_one_whole_line(error: HeadraceError, line: str) -> None:
    assert told(error) == line
