"""OTLP's TraceService, so that any exporter can send here."""

from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service_grpc

from headrace_controlplane.trace_store import TraceStore


class TraceReceiver(service_grpc.TraceServiceServicer):
    """https://opentelemetry.io/docs/specs/otlp/#otlpgrpc: what is refused is told as a partial success."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store

    async def Export(self, request: Any, context: Any) -> service_pb.ExportTraceServiceResponse:
        num_refused = self._store.add(request.resource_spans)
        answer = service_pb.ExportTraceServiceResponse()
        if num_refused:
            answer.partial_success.rejected_spans = num_refused
            answer.partial_success.error_message = "not valid, over 64 KiB, or over 4096 in a trace"
        return answer


def add_to(server: Any, store: TraceStore) -> None:
    add: Any = service_grpc.add_TraceServiceServicer_to_server
    add(TraceReceiver(store), server)
