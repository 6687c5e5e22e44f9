"""What one response tells metrics, SLO, trace and the log: one outcome, time to the first text, gaps between texts.

Server TTFT runs from the gateway's accept to the first text that is handed to the client's transport. Per text there is
nothing here but additions; everything else happens once, at the end.
"""

import logging
from collections.abc import Mapping
from time import monotonic

from headrace_gateway import blame
from headrace_gateway.arrival import Arrival
from headrace_gateway.instruments import BOARD, INTER_TOKEN, TTFT, Instruments
from headrace_gateway.lifecycle import outputs
from headrace_gateway.prepared import Prepared
from headrace_gateway.slo import Experience, Met, judge
from headrace_gateway.slo_board import NO_CLASS
from headrace_gateway.trace import AttemptTimes, Trace
from headrace_gateway.trace_spans import Facts, spans_of
from headrace_kit import telemetry
from headrace_kit.errors import REASONS
from headrace_kit.tracing import SPANS

log = logging.getLogger(__name__)
UNKNOWN_MODEL = "unknown"
_responses = telemetry.counter("responses_total", "Responses by how they ended", ["model", "outcome"])
_refusals = telemetry.counter("refusals_total", "Requests that ended before they were created, by reason", ["reason"])
_tokens = telemetry.counter("tokens_total", "Tokens of responses that were created", ["model", "kind"])
_kept = telemetry.counter("traces_kept_total", "Responses whose trace was kept, by why", ["why"])


def count_refusal(model: str, reason: str) -> None:
    """A request that never became a response; `model` is one of the snapshot's, or UNKNOWN_MODEL."""
    _responses.labels(model, "rejected").inc()
    _refusals.labels(reason).inc()


class Meter:
    """Follows one response; `now` is the monotonic clock in seconds."""

    def __init__(self, response_id: str, prepared: Prepared, arrival: Arrival, instruments: Instruments) -> None:
        self.trace = Trace(arrival, monotonic())
        self._response_id, self._prepared, self._instruments = response_id, prepared, instruments
        self._model = prepared.model.name
        self._budgets = BOARD.budgets(prepared.slo_class)
        self._ttft, self._gaps = (
            TTFT.of(self._model, self._budgets.name),
            INTER_TOKEN.of(self._model, self._budgets.name),
        )
        self._late_s = self._budgets.inter_token_s or float("inf")
        self._last = arrival.at
        self._num_texts = self._num_late = 0
        self._worst_s = 0.0
        self._is_finished = False

    @property
    def ttft_s(self) -> float:
        """Time from accept to the first text; 0 before it."""
        return self._ttft_s or 0.0

    @property
    def _ttft_s(self) -> float | None:
        first = self.trace.times.first_text_at
        return None if first is None else first - self.trace.times.arrival.at

    @property
    def inter_token_s(self) -> float:
        """Mean time between two texts; 0 before there were two."""
        first = self.trace.times.first_text_at
        return 0.0 if first is None or self._num_texts < 2 else (self._last - first) / (self._num_texts - 1)

    @property
    def _num_gaps(self) -> int:
        return max(0, self._num_texts - 1)

    def text(self, now: float) -> None:
        """Text goes out; what goes out together counts once."""
        gap_s = now - self._last
        self._last = now
        if self._num_texts:
            self._gaps.add(gap_s)
            if gap_s > self._worst_s:
                self._worst_s = gap_s
            if gap_s > self._late_s:
                self._num_late += 1
        else:
            self._ttft.add(gap_s)
            self.trace.times.first_text_at = now
        self._num_texts += 1

    def refused(self, refusal: outputs.Refusal) -> None:
        """It ended before `created`."""
        count_refusal(self._model, refusal.reason)
        extra = {"response_id": self._response_id, "reason": refusal.reason, "detail": refusal.detail}
        log.info("response_refused", extra=extra | {"trace_id": self.trace.root.trace_id})

    def ended(self, terminal: outputs.Terminal) -> None:
        """Its one terminal."""
        _responses.labels(self._model, terminal.kind).inc()
        _tokens.labels(self._model, "prompt").inc(terminal.usage.num_prompt_tokens)
        _tokens.labels(self._model, "output").inc(terminal.usage.num_output_tokens)
        level = logging.ERROR if terminal.kind == "failed" else logging.INFO
        extra = {
            "response_id": self._response_id,
            "kind": terminal.kind,
            "reason": terminal.reason,
            "detail": terminal.detail,
            "num_output_tokens": terminal.usage.num_output_tokens,
            "trace_id": self.trace.root.trace_id,
        }
        log.log(level, "response_ended", extra=extra)

    def keeps_trace(self, *, failed: bool, now: float) -> bool:
        """Whether the trace is kept, as far as is known now; once said, it stays so."""
        broken = failed or self._broken_so_far(now)
        return self.trace.decide(broken=broken, draw=self._instruments.draw, now=now)

    def finish(self, ending: outputs.Terminal | outputs.Refusal, snapshot_version: int, now: float) -> None:
        """Its last word has been handed over, or has nobody left to hear it. Only the first call counts."""
        if self._is_finished:
            return
        self._is_finished = True
        self.trace.times.ended_at = now
        failed = _is_our_fault(ending)
        met, phase = Met(ttft=True, inter_token=True, good=False), ""
        if failed or self._num_texts:  # anything else says nothing about us
            met = judge(self._budgets, Experience(self._ttft_s, self._num_gaps, self._num_late, failed))
            phase = self._blame(met)
            BOARD.count(self._budgets, met, phase)
        if any(attempt.answer is not None and attempt.answer.ttft_infeasible for attempt in self.trace.times.attempts):
            BOARD.infeasible(self._budgets)
        if failed:
            self._instruments.remember_failed(self._response_id, self.trace.root)
        if self.keeps_trace(failed=failed or bool(met.broken), now=now):
            _kept.labels("error" if failed else "slo" if met.broken else "other").inc()
            self._let_go(ending, snapshot_version, (met.broken, phase))

    def _let_go(
        self, ending: outputs.Terminal | outputs.Refusal, snapshot_version: int, broken: tuple[str, str]
    ) -> None:
        trace_id = self.trace.root.trace_id
        if self._ttft_s is not None:
            self._ttft.point_to(self._ttft_s, trace_id)
        if self._worst_s:
            self._gaps.point_to(self._worst_s, trace_id)
        retried = self._instruments.failed(self._prepared.request.retry_of)
        facts = Facts(
            self._response_id,
            self._prepared,
            snapshot_version,
            ending,
            self._ttft_s,
            self._worst_s,
            self._num_texts,
            *broken,
            retried,
        )
        for span in spans_of(self.trace, facts):
            SPANS.end(span)

    def _broken_so_far(self, now: float) -> bool:
        budgets, ttft_s = self._budgets, self._ttft_s
        if budgets.name == NO_CLASS:
            return False
        waited_s = now - self.trace.times.arrival.at if ttft_s is None else ttft_s
        late = bool(budgets.ttft_s) and waited_s > budgets.ttft_s
        return late or not judge(budgets, Experience(0.0, self._num_gaps, self._num_late)).inter_token

    def _blame(self, met: Met) -> str:
        if met.broken == "inter_token":
            attempts = self.trace.times.attempts
            worst_ms = max((a.final.worst_gap_ms for a in attempts if a.final is not None), default=0.0)
            return blame.late_gap(self._budgets.inter_token_s, worst_ms / 1000)
        if met.broken != "ttft":
            return ""
        return blame.late_first_text(self._allowances(), self._spent_until_first_text())

    def _allowances(self) -> blame.Allowances:
        answers = [a.answer for a in self.trace.times.attempts if a.answer is not None]
        predicted_s = answers[-1].predicted_prefill_ms / 1000 if answers else 0.0
        return blame.Allowances(self._budgets.ttft_s, predicted_s, self._budgets.reserve_s)

    def _spent_until_first_text(self) -> Mapping[str, float]:
        times = self.trace.times
        until = times.ended_at if times.first_text_at is None else times.first_text_at
        assert until is not None, "blame falls at the end"
        spent = {"gate": (times.admitted_at or until) - times.arrival.at}
        for attempt in times.attempts:
            for phase, seconds in _phases(attempt, until).items():
                spent[phase] = spent.get(phase, 0.0) + seconds
        spent["deliver"] = max(0.0, until - times.arrival.at - sum(spent.values()))
        return spent


def _phases(attempt: AttemptTimes, until: float) -> dict[str, float]:
    """Seconds of one attempt before the first text; the worker's own where it said them."""
    routed_at = attempt.routed_at or until
    phases = {"route": routed_at - attempt.routing_at}
    if attempt.answer is None:
        return phases
    ended_at = min(attempt.ended_at or until, until)
    if attempt.final is not None:
        return phases | {"queue": attempt.final.queue_ms / 1000, "prefill": attempt.final.prefill_ms / 1000}
    accepted_at = attempt.accepted_at or ended_at
    return phases | {"queue": accepted_at - routed_at, "prefill": max(0.0, ended_at - accepted_at)}


def _is_our_fault(ending: outputs.Terminal | outputs.Refusal) -> bool:
    """What failed, and what we refused for want of capacity; not what a caller got wrong or gave up."""
    if isinstance(ending, outputs.Terminal):
        return ending.kind == "failed"
    return ending.reason in REASONS and REASONS[ending.reason].http >= 500
