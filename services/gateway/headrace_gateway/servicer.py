"""The public gRPC contract over sessions: proto in, proto out. Holds no rule of its own."""

import time
from typing import Any

import grpc

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc, response_pb2
from headrace_gateway.arrival import Arrival
from headrace_gateway.front import Front, named
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage
from headrace_gateway.parsed_stream import ParsedDelta, ParsedEvent, ParsedStream
from headrace_gateway.session import Session
from headrace_kit.errors import REASONS, HeadraceError


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """`front` prepares and starts responses; errors become statuses in the interceptor."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def Generate(self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Writes by itself: it is one layer less for every event than a generator."""
        arrival = Arrival.now(dict(context.invocation_metadata() or ()))
        session = await self._front.open(request, credential(context), context.time_remaining(), arrival)
        stream = ParsedStream(session)
        written = _Written(session, stream)
        try:
            async for batch in stream.batches():
                for event in batch:
                    await context.write(written.of(event))
        except HeadraceError as error:
            raise named(error, request) from error
        finally:
            session.leave("disconnect")

    async def Cancel(self, request: pb.CancelRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.CancelResponse:
        found = await self._front.cancel(request.response_id, credential(context))
        return pb.CancelResponse(found=found)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=await self._front.models(credential(context)))

    async def CountTokens(
        self, request: pb.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CountTokensResponse:
        num_tokens = await self._front.count_tokens(request.request, credential(context))
        return pb.CountTokensResponse(num_prompt_tokens=num_tokens)


def credential(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The bearer token of a call, or an empty string."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return bearer(str(value))
    return ""


def bearer(header: str) -> str:
    """The token of an `Authorization: Bearer …` header; any other scheme carries none."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class _Written:
    """The events of one response as the contract has them. Each is good until the next: most share one message."""

    def __init__(self, session: Session, stream: ParsedStream) -> None:
        self._session, self._stream = session, stream
        self._plain = pb.ResponseEvent(response_id=session.response_id)

    def of(self, event: ParsedEvent) -> pb.ResponseEvent:
        if not isinstance(event, outputs.Delta) or event.logprobs:
            return self._rarer(event)
        message, delta = self._plain, self._plain.delta
        message.sequence_number = event.sequence_number
        delta.choice, delta.text, delta.num_tokens = event.choice, event.text, event.num_tokens
        return message

    def _rarer(self, event: ParsedEvent) -> pb.ResponseEvent:
        message = pb.ResponseEvent(response_id=self._session.response_id, sequence_number=event.sequence_number)
        match event:
            case outputs.Delta() | ParsedDelta():
                message.delta.CopyFrom(_delta(event))
            case outputs.Created():
                message.created.CopyFrom(_created(self._session))
            case outputs.ChoiceFinished():
                finished = message.choice_finished
                finished.choice, finished.reason, finished.stop = event.choice, event.reason, event.stop
                finished.num_output_tokens = event.num_tokens
            case outputs.Terminal():
                _set_terminal(message, event, self._stream.num_reasoning_tokens)
        return message


def _delta(event: outputs.Delta | ParsedDelta) -> pb.Delta:
    delta = pb.Delta(choice=event.choice, text=event.text, num_tokens=event.num_tokens)
    delta.logprobs.extend(event.logprobs)  # type: ignore[arg-type]
    if isinstance(event, outputs.Delta):
        return delta
    delta.reasoning = event.reasoning
    if (call := event.tool_call) is not None:
        piece = pb.ToolCallDelta(index=call.index, id=call.call_id, name=call.name, arguments=call.arguments)
        delta.tool_call.CopyFrom(piece)
    return delta


def _created(session: Session) -> pb.Created:
    prepared = session.prepared
    return pb.Created(
        model=prepared.model.name,
        retry_of=prepared.request.retry_of,
        snapshot_version=session.snapshot_version,
        created_at_s=int(time.time()),
        client_request_id=prepared.request.client_request_id,
    )


def _set_terminal(message: pb.ResponseEvent, event: outputs.Terminal, num_reasoning: int) -> None:
    usage = _usage(event.usage)
    usage.num_reasoning_tokens = num_reasoning
    match event.kind:
        case "completed":
            message.completed.usage.CopyFrom(usage)
        case "incomplete":
            message.incomplete.CopyFrom(pb.Incomplete(reason=event.reason, usage=usage))
        case "cancelled":
            message.cancelled.CopyFrom(pb.Cancelled(reason=event.reason, usage=usage))
        case _:
            message.failed.CopyFrom(failed(event, usage))


def failed(event: outputs.Terminal, usage: response_pb2.Usage) -> pb.Failed:
    row = REASONS[event.reason]
    return pb.Failed(reason=event.reason, message=event.detail or row.meaning, retryable=row.retryable, usage=usage)


def _usage(usage: Usage) -> response_pb2.Usage:
    return response_pb2.Usage(
        num_prompt_tokens=usage.num_prompt_tokens,
        num_cached_tokens=usage.num_cached_tokens,
        num_output_tokens=usage.num_output_tokens,
    )
