"""What all responses of this process are measured with: histograms, SLO board, and which traces are kept."""

from collections import OrderedDict

from headrace.v1 import snapshot_pb2
from headrace_gateway.latency import Latency
from headrace_gateway.slo_board import SloBoard
from headrace_gateway.trace_draw import TraceDraw
from headrace_kit.tracing import TraceContext

_MAX_FAILED = 10_000
TTFT = Latency("ttft_seconds", "Time from accept to the first text")
INTER_TOKEN = Latency("inter_token_seconds", "Time between two texts of one response")
BOARD = SloBoard()


class Instruments:
    """`failed` finds the trace of a response that a later one retries, if it failed here not long ago."""

    def __init__(self, draw: TraceDraw) -> None:
        self.draw = draw
        self._failed: OrderedDict[str, TraceContext] = OrderedDict()

    def apply(self, section: snapshot_pb2.GatewaySection) -> None:
        """Objectives become edges."""
        BOARD.apply(section.classes)
        TTFT.set_objectives(one.ttft_ms / 1000 for one in section.classes)
        INTER_TOKEN.set_objectives(one.inter_token_ms / 1000 for one in section.classes)

    def remember_failed(self, response_id: str, root: TraceContext) -> None:
        self._failed[response_id] = root
        if len(self._failed) > _MAX_FAILED:
            self._failed.popitem(last=False)

    def failed(self, response_id: str) -> TraceContext | None:
        return self._failed.get(response_id)
