"""Between the Attaches and the engine: commands go down, what comes of them goes up to the mailbox it belongs to.

    Attach --Submit/Cancel/Ack--> Dispatch --> engine process
    mailbox <--accepted, tokens, finals, orphans-- Dispatch <-- EngineOutput

One outcome per Submit: refused, or one final per choice, whatever dies. Knows no stream and no process.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from headrace.v1 import worker_pb2
from headrace_kit.tracing import SPANS
from headrace_worker import frames, records
from headrace_worker.attempts import Attempt, Attempts
from headrace_worker.books import Books
from headrace_worker.engine import EngineOutput
from headrace_worker.mailbox import Mailbox
from headrace_worker.messages import Command, Submit
from headrace_worker.orphans import Orphans
from headrace_worker.replica import Replica
from headrace_worker.scheduling.cancel import Cancel
from headrace_worker.scheduling.events import Accepted, Event, Finished, PagesWanted, Progress, Refused, Tokens
from headrace_worker.spans import spans_of
from headrace_worker.step_records import StepRecords
from headrace_worker.submission import Fault, read_submit

log = logging.getLogger(__name__)
_MAX_DECISIONS = 10_000
_RETRY_AFTER_MS = 1000


class Dispatch:
    """`send` takes commands to the engine process; `clock` gives seconds."""

    def __init__(
        self, replica: Replica, send: Callable[[Command], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.attempts = Attempts()
        self.books = Books()
        self.steps = StepRecords(replica.config.max_running)
        self.orphans = Orphans(replica.replica_id)
        # Hears of every event of an attempt before its Attach does.
        self.on_hand_off: Callable[[Event, Attempt], None] = lambda event, attempt: None
        self.num_decisions = 0
        self._decisions: deque[str] = deque(maxlen=_MAX_DECISIONS)
        self._replica, self._send, self._clock = replica, send, clock
        self._gateways: dict[Mailbox, str] = {}

    def open(self, gateway_id: str) -> Mailbox:
        """A gateway attaches: its mailbox, with the orphans that it may have."""
        mailbox = Mailbox()
        self._gateways[mailbox] = gateway_id
        self.orphans.attach(mailbox, gateway_id)
        self.offer_orphans()
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """An Attach has ended: its sequences end, its finals become orphans."""
        self._gateways.pop(mailbox, None)
        self.orphans.detach(mailbox)
        for attempt in self.attempts:
            if attempt.mailbox is mailbox:
                self._orphan(attempt)
        self.offer_orphans()

    def submit(self, mailbox: Mailbox, submit: worker_pb2.Submit) -> None:
        """Every outcome is a message of the mailbox; nothing that a Submit says raises."""
        refused = self._refusal(submit)
        if refused is None:
            handle = self.attempts.reserve_handles(submit.n if submit.n < 2**16 else 1)
            request = read_submit(submit, handle, self._replica.kv_context)
            if not isinstance(request, Fault) and not self.attempts.are_free(mailbox, _wire_range(submit)):
                request = Fault("handle", "a choice of this Attach has it already")
            if not isinstance(request, Fault):
                self._add(Attempt(submit, handle, self._gateways[mailbox], mailbox))
                self.books.submitted()
                self._note_decision(submit.decision_id)
                self._send(Submit(request))
                return
            refused = _refused(submit, "invalid_argument", request.detail, request.field)
        records.record_refusal(refused.reason)
        mailbox.put_refused(refused)

    def cancel(self, mailbox: Mailbox, cancel: worker_pb2.Cancel) -> None:
        """Ends what the Attach submitted, or what it proves to be of its tenant; anything else is left alone."""
        reason = cancel.reason if cancel.reason in frames.CANCEL_REASONS else "client"
        accepted_count = cancel.accepted_count if cancel.HasField("accepted_count") else None
        for attempt in self.attempts.of_response(cancel.response_id, cancel.attempt):
            if attempt.mailbox is not mailbox and attempt.submit.tenant_digest != cancel.tenant_digest:
                log.warning("cancel_of_another_tenant", extra={"response_id": cancel.response_id})
                continue
            self._send(Cancel(*attempt.key, max(-1, cancel.choice), reason, accepted_count))

    def ack(self, mailbox: Mailbox, ack: worker_pb2.Ack) -> None:
        """Finals that arrived: the attempt's own Attach says so, or whoever was offered the orphan."""
        for ref in ack.attempts:
            attempt = self.attempts.find(ref.response_id, ref.attempt)
            if attempt is not None and attempt.ended and attempt.mailbox in (mailbox, None):
                self.books.acknowledged(attempt, ref.num_settled_tokens if ref.HasField("num_settled_tokens") else None)
                if ref.traced:
                    self._let_spans_go(attempt)
                self._forget(attempt)

    def deliver(self, output: EngineOutput) -> None:
        """What an engine step brought, each to its mailbox."""
        self._replica.note_load(output.load)
        self.steps.note(output)
        records.record_load(output.load, self._replica.page_bytes, self._replica.config.page_tokens)
        if output.step_model is not None:
            self._replica.note_step_model(output.step_model)
        for imbalance in output.imbalances:
            log.error("engine_imbalance", extra={"imbalance": imbalance})
            records.record_imbalance()
            self.books.imbalanced()
        for event in output.events:
            attempt = self.attempts.of_handle(event.handle)
            if attempt is not None:
                self.on_hand_off(event, attempt)
                if attempt.mailbox is not None:
                    attempt.mailbox.note_step(output.step)
                self._deliver_event(event, attempt, output)

    def end_all(self, reason: str) -> int:
        """Ends every attempt that has not ended; returns how many choices that are."""
        live = [attempt for attempt in self.attempts if not attempt.ended]
        for attempt in live:
            self._send(Cancel(*attempt.key, reason=reason))
        return sum(attempt.submit.n - len(attempt.finals) for attempt in live)

    def lose_engine(self) -> None:
        """The engine is gone: what waited may try elsewhere, what ran has failed, as far as was reported."""
        for attempt in self.attempts:
            if attempt.accepted is None:
                if attempt.mailbox is not None:
                    attempt.mailbox.put_refused(_refused(attempt.submit, "busy", "the engine has ended"))
                self.books.refused()
                self._forget(attempt)
                continue
            for choice, tally in enumerate(attempt.choices):
                if not tally.ended:
                    self._end_choice(attempt, frames.lost_final(attempt, choice, "worker_lost"))

    @property
    def attached(self) -> set[str]:
        """Gateways that are there now: what runs, runs for one of them, or is being ended."""
        return set(self._gateways.values())

    def offer_orphans(self) -> None:
        self.orphans.offer(self._clock())

    def decisions_since(self, num_seen: int) -> list[str]:
        """Routing decisions that came after the first `num_seen`, as far as they are remembered."""
        num_new = min(self.num_decisions - num_seen, len(self._decisions))
        return list(islice(self._decisions, len(self._decisions) - num_new, None))

    def _refusal(self, submit: worker_pb2.Submit) -> worker_pb2.Refused | None:
        replica = self._replica
        if replica.draining:
            return _refused(submit, "draining", "this replica finishes what runs and admits nothing")
        if not replica.ready or replica.description is None:
            return _refused(submit, "busy", f"this replica is not ready: {replica.progress}")
        if submit.replica_epoch != replica.epoch:
            detail = f"epoch {submit.replica_epoch!r} is over, this is {replica.epoch!r}"
            return _refused(submit, "busy", detail, "replica_epoch")
        if submit.kv_context and submit.kv_context != replica.kv_context:
            return _refused(submit, "busy", "the decision named another KV context", "kv_context")
        if submit.prefill.endpoint and replica.config.role == "both":
            return _refused(
                submit, "invalid_argument", "this replica's role is both: nobody hands off to it", "prefill"
            )
        if replica.config.role == "prefill":
            return _refused(submit, "invalid_argument", "this replica's role is prefill: it draws no tokens")
        if self.attempts.find(submit.response_id, submit.attempt) is not None:
            return _refused(submit, "invalid_argument", "this attempt is here already", "response_id")
        # Spares carrying megabytes to the engine, which would say the same.
        num_prompt, limit = len(submit.prompt_ids) // 4, replica.description.max_context
        if num_prompt > limit:
            detail = f"the prompt has {num_prompt} tokens and at most {limit} fit with the output"
            return _refused(submit, "context_length_exceeded", detail, "prompt_ids")
        return None

    def _deliver_event(self, event: Event, attempt: Attempt, output: EngineOutput) -> None:
        mailbox = attempt.mailbox
        if isinstance(event, Tokens):
            attempt.choices[event.handle - attempt.handle].num_generated += len(event.token_ids)
            self.books.reported(len(event.token_ids))
            if mailbox is not None:
                handle = attempt.wire_handle(event.handle)
                mailbox.put_tokens(handle, event.token_ids, frames.to_logprobs(event))
        elif isinstance(event, Finished):
            if event.handle in output.notes:
                attempt.notes[event.choice] = output.notes[event.handle]
            self._end_choice(attempt, frames.to_final(event, attempt, output.device_s.get(event.handle, 0.0)))
        elif isinstance(event, Accepted):
            attempt.pool_pressure = output.load.num_promised_pages / max(1, output.load.num_total_pages)
            attempt.accepted = frames.to_accepted(event, attempt, output.pieces.get(event.handle, ()))
            if mailbox is not None:
                mailbox.put_accepted(attempt.accepted)
        elif isinstance(event, PagesWanted):
            return
        elif isinstance(event, Progress):
            if mailbox is not None:
                mailbox.put_progress(attempt.submit.handle, event.num_prefilled)
        else:
            assert isinstance(event, Refused), f"unknown event {event!r}"
            records.record_refusal(event.reason)
            self.books.refused()
            if mailbox is not None:
                mailbox.put_refused(frames.to_refused(event, attempt))
            self._forget(attempt)

    def _end_choice(self, attempt: Attempt, final: worker_pb2.Final) -> None:
        tally = attempt.choices[final.choice]
        assert not tally.ended, f"choice {final.choice} of {attempt.key} ended twice"
        tally.ended = True
        attempt.finals.append(final)
        attempt.ended_ns = time.time_ns()
        records.record_final(final)
        self.books.ended(final)
        if final.kind == worker_pb2.FINAL_KIND_FAILED:
            extra = {"response_id": final.response_id, "attempt": final.attempt, "reason": final.reason}
            log.error("sequence_failed", extra={**extra, "choice": final.choice})
        if attempt.mailbox is not None:
            attempt.mailbox.put_final(final)
        elif attempt.ended:
            self.offer_orphans()

    def _add(self, attempt: Attempt) -> None:
        attempt.submitted_ns = time.time_ns()
        attempt.num_waiting_before = self._replica.load.num_waiting if self._replica.load is not None else 0
        self.attempts.add(attempt)

    def _let_spans_go(self, attempt: Attempt) -> None:
        """Its trace is kept: the times that its finals carry become spans."""
        if (binding := self.steps.binding) is not None:
            attempt.binding = binding.resource.value, round(binding.share, 4)
        for span in spans_of(attempt, self._replica):
            SPANS.end(span)

    def _orphan(self, attempt: Attempt) -> None:
        self.attempts.detach(attempt)
        dropped = self.orphans.add(attempt, self._clock())
        if dropped is not None:
            log.error("orphan_dropped", extra={"response_id": dropped.submit.response_id})
            self.attempts.forget(dropped)
            self.books.dropped()
        if not attempt.ended:
            self._send(Cancel(*attempt.key, reason="gateway_lost"))

    def _forget(self, attempt: Attempt) -> None:
        self.attempts.forget(attempt)
        self.orphans.discard(attempt)

    def _note_decision(self, decision_id: str) -> None:
        if decision_id:
            self._decisions.append(decision_id)
            self.num_decisions += 1


def _wire_range(submit: worker_pb2.Submit) -> range:
    return range(submit.handle, submit.handle + submit.n)


def _refused(submit: worker_pb2.Submit, reason: str, detail: str, field: str = "") -> worker_pb2.Refused:
    retry_after_ms = _RETRY_AFTER_MS if reason == "busy" else 0
    return worker_pb2.Refused(
        handle=submit.handle, reason=reason, field=field, detail=detail, retry_after_ms=retry_after_ms
    )
