"""One attempt as its worker reports it: token ids become text, and the machine hears of everything.

Knows no client. A fault of the text side of one choice is that response's alone.
"""

from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Protocol, TypeAlias

from headrace.v1 import inference_pb2, response_pb2
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.lifecycle import events
from headrace_gateway.lifecycle.settlement import Prefill
from headrace_gateway.prepared import Prepared
from headrace_gateway.text.choice_text import ChoiceText
from headrace_gateway.trace import AttemptTimes
from headrace_kit.errors import HeadraceError

_Logprob: TypeAlias = inference_pb2.DeliveredLogprob
_FINAL_KINDS = {
    pb.FINAL_KIND_STOP: "stop",
    pb.FINAL_KIND_LENGTH: "length",
    pb.FINAL_KIND_CANCELLED: "cancelled",
    pb.FINAL_KIND_FAILED: "failed",
}


class Hearer(Protocol):
    """Whoever runs the machine."""

    @property
    def joins_texts(self) -> bool: ...
    def feed(self, event: events.Event) -> None: ...
    def feed_all(self, happened: Iterable[events.Event]) -> None: ...


class AttemptReader:
    """Listens to one attempt and feeds the machine."""

    def __init__(self, times: AttemptTimes, prepared: Prepared, hearer: Hearer) -> None:
        self._attempt, self._prepared, self._hearer = times.number, prepared, hearer
        self._times = times
        self._feed = hearer.feed
        self._pieces: tuple[bytes, ...] = ()
        self._texts: list[ChoiceText] = []

    def on_accepted(self, accepted: pb.Accepted) -> None:
        self._times.accept(accepted, monotonic())
        self._pieces = tuple(accepted.pieces)
        tokenizer, stops = self._prepared.model.tokenizer, self._prepared.stops
        continues = self._prepared.continues_text
        for _ in range(self._prepared.bounds.n):
            self._texts.append(ChoiceText(tokenizer.detokenizer(self._pieces, continues), stops))
        self._feed(events.Accepted(self._attempt, accepted.num_cached_tokens))

    def on_refused(self, refused: pb.Refused) -> None:
        wait_s = refused.retry_after_ms / 1000 if refused.retry_after_ms else None
        self._feed(events.AttemptRefused(self._attempt, refused.reason, refused.detail, refused.field, wait_s))

    def on_tokens(self, choice: int, token_ids: list[int], logprobs: pb.SequenceLogprobs | None) -> None:
        """Each token makes its own text, unless the hearer would join them anyway."""
        delivered = [self._delivered(one) for one in logprobs.tokens] if logprobs is not None else None
        size = len(token_ids) if self._hearer.joins_texts else 1
        self._hearer.feed_all(self._read(choice, token_ids, delivered, size))

    def _read(
        self, choice: int, token_ids: list[int], logprobs: "list[_Logprob | None] | None", size: int
    ) -> Iterator[events.Event]:
        """What `size` tokens at a time let out, for as long as the text side can go on."""
        text, start = self._texts[choice], 0
        while start < len(token_ids):
            part = token_ids[start : start + size]
            try:
                step = text.feed(part, None if logprobs is None else logprobs[start : start + size])
            except HeadraceError as error:
                yield events.Tokens(self._attempt, choice, len(part), "", 0)
                yield events.DecodeFailed(self._attempt, choice, error.message)
                return
            start += step.num_tokens
            yield events.Tokens(self._attempt, choice, *step, "" if step.stop_at is None else text.stop)

    def on_final(self, final: pb.Final) -> None:
        self._times.end(final)
        kind = _FINAL_KINDS[final.kind]
        tail, num_shown, logprobs = "", 0, ()
        if kind in ("stop", "length") and self._texts:
            step = self._texts[final.choice].finish()
            tail, num_shown, logprobs = step.text, step.num_shown, step.logprobs
        self._feed(
            events.ChoiceFinal(
                attempt=self._attempt,
                choice=final.choice,
                kind=kind,
                reason=final.reason,
                num_generated=final.num_generated_tokens,
                num_late=final.num_late_tokens,
                tail=tail,
                num_tail_shown=num_shown,
                tail_logprobs=logprobs,
                device_us=final.device_us,
                prefill=_prefill(final),
            )
        )

    def on_lost(self, reason: str) -> None:
        self._feed(events.AttemptLost(self._attempt, reason))

    def _delivered(self, one: response_pb2.TokenLogprob) -> "_Logprob | None":
        """None for an end token: it has no text that an entry could belong to."""
        if one.token_id in self._prepared.model.card.end_token_ids:
            return None
        return self._shown(one.token_id, one.logprob, [self._shown(other.token_id, other.logprob) for other in one.top])

    def _shown(self, token_id: int, logprob: float, top: "list[_Logprob] | None" = None) -> "_Logprob":
        raw = self._prepared.model.tokenizer.token_bytes(token_id, self._pieces)
        text = raw.decode("utf-8", "replace")
        return inference_pb2.DeliveredLogprob(token=text, token_bytes=raw, logprob=logprob, top=top)


def _prefill(final: pb.Final) -> Prefill | None:
    if not final.HasField("prefill"):
        return None
    return Prefill(final.prefill.id, final.prefill.epoch, final.prefill_device_us)
