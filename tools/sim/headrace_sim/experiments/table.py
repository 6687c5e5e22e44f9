"""What an experiment leaves behind: a question, what was run, a table and what it says. Formats only."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """`setting` says what was run, so that anybody can run it again; `finding` is one or two sentences."""

    title: str
    setting: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    finding: str

    def to_markdown(self, name: str) -> str:
        lines = [f"# {self.title}", "", self.setting, "", f"    python -m headrace_sim.experiments {name}", ""]
        lines += [f"| {' | '.join(self.head)} |", "|" + "---|" * len(self.head)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", self.finding, ""])


def percent(share: float) -> str:
    return f"{share:.1%}"


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
