"""What `headrace top` draws fits the terminal: whole columns, the most used first."""

import io

import pytest
from rich.console import Console

from headrace_cli.overview import ClassLine, EngineLine, Overview, TenantLine
from headrace_cli.verbs import top

SEEN = Overview(
    engines=[EngineLine("llama-70b-0", 12, 3, 61.5, 0.4, 0.3, 0.9, 812, 0.0123)],
    classes=[ClassLine("interactive", 0.987, 1.0, 3.25, 1.3, 0.4)],
    silent=["gateway 127.0.0.1:8181", "worker w-1"],
)
TENANTS = [TenantLine("acme", 120, 2, 1, 44_000, 1.25)]


def drawn(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(top._view(SEEN, TENANTS, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 140])
def test_no_column_is_cut(width: int) -> None:
    text = drawn(width)
    assert "…" not in text and all(len(line) <= width for line in text.splitlines())
    assert "llama-70b-0" in text and "interactive" in text and "acme" in text


def test_a_narrow_terminal_shows_what_counts_most() -> None:
    assert all(word in drawn(40) for word in ("running", "waiting", "TTFT kept", "98.7%", "responses"))
    assert "memory" not in drawn(40)


def test_who_does_not_answer_is_named() -> None:
    assert "no answer from gateway 127.0.0.1:8181, worker w-1" in drawn(140)


def test_a_wide_terminal_shows_everything() -> None:
    assert all(word in drawn(140) for word in ("memory", "█", "burn 1 h", "cost", "12.3 ms"))
