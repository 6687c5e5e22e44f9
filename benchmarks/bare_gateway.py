"""A gateway that measures nothing: no metric, no trace, no SLO. For `benchmarks.operations`, as the side without them.

Everything else is the real gateway: `python -m benchmarks.bare_gateway` takes its flags.
"""

from types import SimpleNamespace
from typing import Any

import prometheus_client
from prometheus_client import metrics

from headrace_gateway import session
from headrace_gateway.__main__ import main as gateway_main
from headrace_kit import tracing
from headrace_kit.tracing import TraceContext

_CONTEXT = TraceContext("1" * 32, "1" * 16)


class _NoAttempt:
    """Times of one attempt that nobody keeps."""

    span = SimpleNamespace(header="")

    def __init__(self, number: int) -> None:
        self.number = number

    def accept(self, *_: Any) -> None: ...
    def end(self, *_: Any) -> None: ...


class _NoTrace:
    """What a session asks of its trace, without doing it."""

    root, is_kept = _CONTEXT, False

    def __init__(self) -> None:
        self.times = SimpleNamespace(gate=None)

    def attempt(self, number: int) -> _NoAttempt:
        return _NoAttempt(number)

    def routing(self, *_: Any) -> None: ...
    def routed(self, *_: Any) -> None: ...
    def reported(self, *_: Any) -> None: ...
    def settling(self, *_: Any) -> None: ...
    def settled(self, *_: Any) -> None: ...


class _NoMeter:
    """What a session asks of its meter, without doing it."""

    ttft_s = inter_token_s = 0.0

    def __init__(self, *_: Any) -> None:
        self.trace = _NoTrace()

    def text(self, *_: Any) -> None: ...
    def refused(self, *_: Any) -> None: ...
    def ended(self, *_: Any) -> None: ...
    def finish(self, *_: Any) -> None: ...

    def keeps_trace(self, **_: Any) -> bool:
        return False


def _nothing(*_: Any, **__: Any) -> None: ...


def main() -> None:
    """Takes the instruments out and runs the gateway."""
    replaced: Any = session
    replaced.Meter = _NoMeter
    quiet: Any = tracing
    quiet.parse, quiet.inject = lambda _: None, dict
    for kind, names in (("Counter", ("inc",)), ("Gauge", ("set", "inc", "dec")), ("Histogram", ("observe",))):
        for name in names:
            setattr(getattr(prometheus_client, kind), name, _nothing)
    base: Any = metrics.MetricWrapperBase
    base.labels = lambda self, *_, **__: self
    gateway_main()


if __name__ == "__main__":
    main()
