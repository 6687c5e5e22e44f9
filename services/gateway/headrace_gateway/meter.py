"""What one response tells metrics and the log: one outcome, time to the first text, gaps between texts.

Server TTFT runs from the gateway's accept to the first text that is handed to the client's transport.
"""

import logging

from headrace_gateway.lifecycle import outputs
from headrace_kit import telemetry

log = logging.getLogger(__name__)
_responses = telemetry.counter("responses_total", "Responses by how they ended", ["model", "outcome"])
_tokens = telemetry.counter("tokens_total", "Tokens of responses that were created", ["model", "kind"])
_ttft = telemetry.histogram("ttft_seconds", "Time from accept to the first text", ["model"])
_gap = telemetry.histogram("inter_token_seconds", "Time between two texts of one response", ["model"])


class Meter:
    """Follows one response; `now` is the loop's clock in seconds."""

    def __init__(self, response_id: str, model: str, now: float) -> None:
        self._response_id, self._model, self._started, self._last = response_id, model, now, now
        self._gap, self._ttft = _gap.labels(model), _ttft.labels(model)
        self._first, self._num_texts = now, 0

    def text(self, now: float) -> None:
        """Text goes out; what goes out together counts once."""
        if self._num_texts:
            self._gap.observe(now - self._last)
        else:
            self._ttft.observe(now - self._last)
            self._first = now
        self._num_texts += 1
        self._last = now

    @property
    def ttft_s(self) -> float:
        """Time from accept to the first text; 0 before it."""
        return self._first - self._started

    @property
    def inter_token_s(self) -> float:
        """Mean time between two texts; 0 before there were two."""
        return (self._last - self._first) / (self._num_texts - 1) if self._num_texts > 1 else 0.0

    def refused(self, refusal: outputs.Refusal) -> None:
        """It ended before `created`."""
        _responses.labels(self._model, "rejected").inc()
        extra = {"response_id": self._response_id, "reason": refusal.reason, "detail": refusal.detail}
        log.info("response_refused", extra=extra)

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
        }
        log.log(level, "response_ended", extra=extra)
