"""One identity per stream: chat and completions."""

from headrace_conformance import schema
from headrace_conformance.checks.check import CHUNKED, Check
from headrace_conformance.chunks import ChunkStream
from headrace_conformance.recording import Recording
from headrace_conformance.tolerant import a_text
from headrace_conformance.verdict import Verdict, failed, judged, na, passed

_SCHEMAS = {"chat": "CreateChatCompletionStreamResponse", "completions": "CreateCompletionResponse"}


def one_identity(recording: Recording) -> Verdict:
    ids = {a_text(chunk.get("id")) for chunk in ChunkStream(recording).chunks.values()}
    if not ids:
        return na("no chunk")
    if len(ids) > 1 or "" in ids:
        return failed(f"ids in one stream: {sorted(ids)}")
    return passed(ids.pop())


def constant_fields(recording: Recording) -> Verdict:
    chunks = ChunkStream(recording).chunks.values()
    if not chunks:
        return na("no chunk")
    seen = {name: {repr(chunk.get(name)) for chunk in chunks} for name in ("object", "model", "created")}
    return judged(
        [f"{name} changes: {sorted(values)}" for name, values in seen.items() if len(values) > 1],
        "object, model and created stay the same",
    )


def fits_schema(recording: Recording) -> Verdict:
    name = _SCHEMAS[recording.surface]
    for at, chunk in ChunkStream(recording).chunks.items():
        if problems := schema.problems(name, chunk):
            return failed(f"event {at} against {name}: " + "; ".join(problems))
    return passed(f"every chunk fits {name}")


CHECKS = (
    Check("stream.identity", "All chunks of a stream carry one id",
          "an id that changes cannot be billed, traced, cancelled or retried", CHUNKED, one_identity),
    Check("stream.constant", "object, model and created stay the same in a stream",
          "clients assemble an answer from any chunk", CHUNKED, constant_fields),
    Check("stream.schema", "Every chunk fits the OpenAI OpenAPI document",
          "generated clients reject what their document does not know", CHUNKED, fits_schema),
)  # fmt: skip
