"""The public gRPC contract over sessions: proto in, proto out. Holds no rule of its own."""

import time
from collections.abc import AsyncIterator
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

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ResponseEvent]:
        arrival = Arrival.now(dict(context.invocation_metadata() or ()))
        session = await self._front.open(request, credential(context), context.time_remaining(), arrival)
        stream = ParsedStream(session)
        try:
            async for batch in stream.batches():
                for event in batch:
                    message = response_event(session, event)
                    if stream.num_reasoning_tokens and isinstance(event, outputs.Terminal):
                        getattr(message, event.kind).usage.num_reasoning_tokens = stream.num_reasoning_tokens
                    yield message
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


def response_event(session: Session, event: ParsedEvent) -> pb.ResponseEvent:
    """One event of the machine as the contract has it."""
    message = pb.ResponseEvent(response_id=session.response_id, sequence_number=event.sequence_number)
    match event:
        case outputs.Delta():
            message.delta.choice, message.delta.text = event.choice, event.text
            message.delta.num_tokens = event.num_tokens
            if event.logprobs:
                message.delta.logprobs.extend(event.logprobs)  # type: ignore[arg-type]
        case ParsedDelta():
            message.delta.CopyFrom(_parsed_delta(event))
        case outputs.Created():
            message.created.CopyFrom(_created(session))
        case outputs.ChoiceFinished():
            finished = message.choice_finished
            finished.choice, finished.reason, finished.stop = event.choice, event.reason, event.stop
            finished.num_output_tokens = event.num_tokens
        case outputs.Terminal():
            _set_terminal(message, event)
    return message


def _parsed_delta(event: ParsedDelta) -> pb.Delta:
    delta = pb.Delta(choice=event.choice, text=event.text, num_tokens=event.num_tokens, reasoning=event.reasoning)
    delta.logprobs.extend(event.logprobs)  # type: ignore[arg-type]
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


def _set_terminal(message: pb.ResponseEvent, event: outputs.Terminal) -> None:
    usage = _usage(event.usage)
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
