"""The engine's events in the wire's messages. Knows no Attach and no order of sending."""

from __future__ import annotations

from typing import cast

from headrace.v1 import response_pb2, worker_pb2
from headrace_worker.attempts import Attempt
from headrace_worker.execution.runner import TokenLogprob
from headrace_worker.scheduling.events import Accepted, Finished, Refused, Tokens

# Reasons with which a caller ends a choice; "stop" is an ending like any other.
CANCEL_REASONS = frozenset({"client", "disconnect", "slow_client", "deadline", "stop", "content_filter", "superseded"})
# What another replica may do better.
_RETRYABLE = frozenset({"worker_lost", "replica_draining", "kv_exhausted", "prefill_lost", "kv_expired"})
# The scheduler's names of fields that the wire calls otherwise.
_WIRE_FIELDS = {"max_output": "max_output_tokens", "num_logprobs": "top_logprobs"}


def to_accepted(event: Accepted, attempt: Attempt, pieces: tuple[bytes, ...]) -> worker_pb2.Accepted:
    return worker_pb2.Accepted(
        handle=attempt.submit.handle,
        num_cached_tokens=event.cached_tokens,
        num_promised_pages=event.promised_pages,
        queue_ms=event.queue_s * 1000,
        pieces=pieces,
    )


def to_refused(event: Refused, attempt: Attempt) -> worker_pb2.Refused:
    return worker_pb2.Refused(
        handle=attempt.submit.handle,
        reason=event.reason,
        field=_WIRE_FIELDS.get(event.field or "", event.field or ""),
        detail=event.detail,
        retry_after_ms=round((event.retry_after_s or 0.0) * 1000),
    )


def to_logprobs(event: Tokens) -> list[response_pb2.TokenLogprob]:
    """One entry per token, if the request asked for them."""
    return [
        response_pb2.TokenLogprob(
            token_id=entry.token_id,
            logprob=entry.logprob,
            top=[response_pb2.TopLogprob(token_id=token_id, logprob=logprob) for token_id, logprob in entry.top],
        )
        for entry in cast("tuple[TokenLogprob, ...]", event.logprobs or ())
    ]


def final_kind(reason: str) -> worker_pb2.FinalKind:
    """What the reason says about how the sequence ended."""
    if reason == "length":
        return worker_pb2.FINAL_KIND_LENGTH
    if reason == "stop":
        return worker_pb2.FINAL_KIND_STOP
    return worker_pb2.FINAL_KIND_CANCELLED if reason in CANCEL_REASONS else worker_pb2.FINAL_KIND_FAILED


def to_final(event: Finished, attempt: Attempt, device_s: float) -> worker_pb2.Final:
    final = worker_pb2.Final(
        handle=attempt.wire_handle(event.handle),
        response_id=event.response_id,
        attempt=event.attempt,
        choice=event.choice,
        kind=final_kind(event.reason),
        reason=event.reason,
        num_prompt_tokens=event.num_prompt,
        num_cached_tokens=event.cached_tokens,
        num_generated_tokens=event.num_generated + event.num_late_steps,
        num_accepted_tokens=event.accepted_count,
        num_late_tokens=event.num_late_steps,
        device_us=round(device_s * 1e6),
        queue_ms=event.queue_s * 1000,
        prefill_ms=event.prefill_s * 1000,
        decode_ms=event.decode_s * 1000,
        worst_gap_ms=event.worst_gap_s * 1000,
        num_promised_pages=event.promised_pages,
        num_used_pages=event.used_pages,
        retryable=event.reason in _RETRYABLE,
    )
    _name_prefill(final, attempt)
    return final


def lost_final(attempt: Attempt, choice: int, reason: str) -> worker_pb2.Final:
    """The end of a choice of which the engine can say no more: what was reported is the truth."""
    num_generated = attempt.choices[choice].num_generated
    accepted = attempt.accepted or worker_pb2.Accepted()
    final = worker_pb2.Final(
        handle=attempt.submit.handle + choice,
        response_id=attempt.submit.response_id,
        attempt=attempt.submit.attempt,
        choice=choice,
        kind=worker_pb2.FINAL_KIND_FAILED,
        reason=reason,
        num_prompt_tokens=len(attempt.submit.prompt_ids) // 4,
        num_cached_tokens=accepted.num_cached_tokens,
        num_generated_tokens=num_generated,
        num_accepted_tokens=num_generated,
        queue_ms=accepted.queue_ms,
        num_promised_pages=accepted.num_promised_pages,
        retryable=reason in _RETRYABLE,
    )
    _name_prefill(final, attempt)
    return final


def _name_prefill(final: worker_pb2.Final, attempt: Attempt) -> None:
    """Who else worked for this attempt, once."""
    if final.choice == 0 and attempt.prefill_device_us:
        final.prefill.CopyFrom(attempt.submit.prefill)
        final.prefill_device_us = attempt.prefill_device_us
