"""One attempt as its worker reports it: token ids become text, and the machine hears of everything.

Knows no client. A fault of the text side of one choice is that response's alone.
"""

from typing import Protocol, TypeAlias

from headrace.v1 import inference_pb2, response_pb2
from headrace.v1 import worker_pb2 as pb
from headrace_gateway.lifecycle import events
from headrace_gateway.prepared import Prepared
from headrace_gateway.text.choice_text import ChoiceText
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
    def is_behind(self) -> bool: ...
    def feed(self, event: events.Event) -> None: ...


class AttemptReader:
    """Listens to one attempt and feeds the machine."""

    def __init__(self, attempt: int, prepared: Prepared, hearer: Hearer) -> None:
        self._attempt, self._prepared, self._hearer = attempt, prepared, hearer
        self._feed = hearer.feed
        self._pieces: tuple[bytes, ...] = ()
        self._texts: list[ChoiceText] = []

    def on_accepted(self, accepted: pb.Accepted) -> None:
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
        """Each token makes its own text, unless the client cannot follow: then they are joined."""
        delivered = [self._delivered(one) for one in logprobs.tokens] if logprobs is not None else None
        size = len(token_ids) if self._hearer.is_behind else 1
        for start in range(0, len(token_ids), size):
            part = slice(start, start + size)
            if not self._read(choice, token_ids[part], None if delivered is None else delivered[part]):
                return

    def _read(self, choice: int, token_ids: list[int], logprobs: "list[_Logprob | None] | None") -> bool:
        """Whether the text side could go on."""
        try:
            step = self._texts[choice].feed(token_ids, logprobs)
        except HeadraceError as error:
            self._feed(events.Tokens(self._attempt, choice, len(token_ids), "", 0))
            self._feed(events.DecodeFailed(self._attempt, choice, error.message))
            return False
        tokens = events.Tokens(
            self._attempt, choice, step.num_tokens, step.text, step.num_shown, step.logprobs, step.stop_at
        )
        self._feed(tokens if step.stop_at is None else tokens._replace(stop=self._texts[choice].stop))
        return True

    def on_final(self, final: pb.Final) -> None:
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
