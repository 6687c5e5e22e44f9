"""A trace as lines of text: who did what when, and which phase broke the budget. Pure; knows no terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.v1 import fleet_pb2 as pb

PHASES = ("gate", "route", "queue", "prefill", "decode", "settle", "deliver")
_SHOWN = {
    "route": ("headrace.decision", "headrace.replica", "headrace.why"),
    "queue": ("headrace.observed_by",),
    "prefill": ("headrace.num_chunks", "headrace.num_cached_tokens", "headrace.num_prompt_tokens"),
    "decode": ("gen_ai.usage.output_tokens", "headrace.worst_gap_s", "headrace.batch_p95", "headrace.binding_resource"),
    "deliver": ("headrace.num_deltas", "headrace.worst_gap_s"),
    "settle": ("headrace.cost",),
}


@dataclass(frozen=True)
class Line:
    """One span; times in milliseconds from the start of the response, `first` and `last` the cells of its bar."""

    name: str
    service: str
    start_ms: float
    took_ms: float
    first: int
    last: int
    notes: str
    error: str

    def bar(self, width: int) -> str:
        return " " * self.first + "█" * (self.last - self.first) + " " * (width - self.last)


def root_of(trace: pb.Trace) -> pb.Span:
    """The response's own span: the one whose parent is not here."""
    known = {span.span_id for span in trace.spans}
    return next(span for span in trace.spans if span.parent_id not in known)


def lines(trace: pb.Trace, width: int) -> list[Line]:
    """Parents before children, in order of their starts, indented."""
    root = root_of(trace)
    total_ns = max(1, root.end_ns - root.start_ns)
    children: dict[str, list[pb.Span]] = {}
    for span in trace.spans:
        if span is not root:
            children.setdefault(span.parent_id, []).append(span)

    def walk(span: pb.Span, depth: int) -> Iterator[Line]:
        yield _line(span, root, depth, (total_ns, width))
        for child in sorted(children.get(span.span_id, ()), key=lambda one: one.start_ns):
            yield from walk(child, depth + 1)

    return list(walk(root, 0))


def phases_ms(trace: pb.Trace) -> dict[str, float]:
    """Milliseconds by phase, over all attempts; together they are the whole response."""
    spent = dict.fromkeys(PHASES, 0.0)
    for span in trace.spans:
        if span.name in spent:
            spent[span.name] += (span.end_ns - span.start_ns) / 1e6
    return {name: ms for name, ms in spent.items() if ms}


def verdict(trace: pb.Trace) -> str:
    """One sentence: how it ended, and if a budget was broken, by which phase."""
    root, told = root_of(trace), root_of(trace).attributes
    took_ms = (root.end_ns - root.start_ns) / 1e6
    sentence = f"{told.get('headrace.terminal', 'ended')} after {took_ms:,.0f} ms"
    if root.error:
        sentence += f": {root.error}"
    if num := told.get("headrace.num_attempts", "1"):
        sentence += "" if num in ("0", "1") else f", on attempt {num}"
    broken, phase = told.get("headrace.slo.broken"), told.get("headrace.slo.phase")
    if not broken:
        return sentence + "; it met its budgets" * ("headrace.ttft_s" in told) + "."
    what = "the first text" if broken == "ttft" else "a gap between two texts"
    return f"{sentence}; {what} was late, and {phase} broke the budget{_took(trace, str(phase))}."


def _took(trace: pb.Trace, phase: str) -> str:
    ms = phases_ms(trace).get(phase)
    return f" ({ms:,.0f} ms)" if ms else ""


def _line(span: pb.Span, root: pb.Span, depth: int, scale: tuple[int, int]) -> Line:
    total_ns, width = scale
    first = min(width - 1, max(0, (span.start_ns - root.start_ns) * width // total_ns))
    last = min(width, max(first + 1, -(-(span.end_ns - root.start_ns) * width // total_ns)))
    return Line(
        name="  " * depth + span.name,
        service=span.service.removeprefix("headrace-"),
        start_ms=(span.start_ns - root.start_ns) / 1e6,
        took_ms=(span.end_ns - span.start_ns) / 1e6,
        first=first,
        last=last,
        notes=_notes(span, _SHOWN.get(span.name, ())),
        error=span.error,
    )


def _notes(span: pb.Span, names: Sequence[str]) -> str:
    told = [(name.rpartition(".")[2], span.attributes[name]) for name in names if name in span.attributes]
    return ", ".join(f"{name}={value}" for name, value in told)
