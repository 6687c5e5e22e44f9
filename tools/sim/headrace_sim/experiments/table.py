"""What an experiment leaves behind: a question, what was run, a table and what it says. Formats only."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_worker.perf.drawing import Line, plot


@dataclass(frozen=True)
class Report:
    """`setting` says what was run, so that anybody can run it again; `finding` is one or two sentences.

    `plots` are over seconds, each a title and its lines; they become files beside the text.
    """

    title: str
    setting: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    finding: str
    plots: Sequence[tuple[str, Sequence[Line]]] = ()

    def to_markdown(self, name: str) -> str:
        lines = [f"# {self.title}", "", self.setting, "", f"    python -m headrace_sim.experiments {name}", ""]
        lines += [f"| {' | '.join(self.head)} |", "|" + "---|" * len(self.head)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        lines += ["", self.finding, ""]
        for (title, _), file in zip(self.plots, self.drawings(name), strict=True):
            lines += [f"![{title}]({file})", ""]
        return "\n".join(lines)

    def drawings(self, name: str) -> dict[str, str]:
        """SVG by file name."""
        found = {}
        for index, (title, lines) in enumerate(self.plots, 1):
            _, _, svg = plot(title, lines, "s").partition("\n")
            font = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11"'
            found[f"{name}-{index}.svg"] = svg.replace("<svg ", f"<svg {font} ", 1) + "\n"
        return found


def percent(share: float) -> str:
    return f"{share:.1%}"


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
