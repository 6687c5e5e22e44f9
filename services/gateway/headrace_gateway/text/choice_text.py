"""The text side of one choice: tokens in, text out, with the count of tokens that each piece of text completes.

Joins detokenizer and stop strings and keeps tokens aligned with text, so that counts and log-probabilities go out with
the text they belong to. Knows no attempt and no client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace_gateway.text.detokenizer import Detokenizer
from headrace_gateway.text.stop_strings import StopFilter, StopStrings
from headrace_kit.errors import HeadraceError


class TextStep(NamedTuple):
    """What some tokens let out; the fields are those of the lifecycle's `Tokens` event.

    `num_tokens` were taken; `num_shown` of these and earlier ones are all out with `text` (0 when it is empty), and
    `logprobs` are theirs. `stop_at`: the stop_at-th token of the choice completed a stop string.
    """

    num_tokens: int
    text: str
    num_shown: int
    logprobs: tuple[Any, ...]
    stop_at: int | None


class ChoiceText:
    """Text of one choice of one attempt."""

    __slots__ = ("_detokenizer", "_num_decoded", "_num_out", "_num_tokens", "_pending", "_stop_at", "_stops")

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings | None = None) -> None:
        self._detokenizer = detokenizer
        self._stops = None if stops is None else StopFilter(stops)
        self._pending: deque[tuple[int, Any]] = deque()
        self._num_decoded = 0
        self._num_out = 0
        self._num_tokens = 0
        self._stop_at: int | None = None

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Any] | None = None) -> TextStep:
        """Take new tokens, with one log-probability entry each if asked for.

        An id that is no token raises HeadraceError decode_error if it comes first; later, the step ends before it.
        """
        if logprobs is None and not self._pending and self._stop_at is None:
            if len(token_ids) == 1:
                return self._feed_plain(token_ids[0])
            if self._stops is None and (text := self._detokenizer.feed_whole(token_ids)):
                self._num_tokens += len(token_ids)
                self._num_decoded += len(text)
                self._num_out = self._num_decoded
                return TextStep(len(token_ids), text, len(token_ids), (), None)
        return self._feed_each(token_ids, logprobs)

    @property
    def stop(self) -> str:
        """The stop string that ended the text, once one did."""
        return "" if self._stops is None else self._stops.matched

    def finish(self) -> TextStep:
        """The choice ended by itself: whatever was held comes out."""
        if self._stop_at is not None:
            return TextStep(0, "", 0, (), None)
        text = self._detokenizer.finish()
        if self._stops is not None:
            text = self._stops.feed(text) + self._stops.finish()
        return self._step(0, text, None)

    def _feed_plain(self, token_id: int) -> TextStep:
        """The common case, one token with nothing held before it: unless it is held itself, it goes straight out."""
        self._num_tokens += 1
        decoded = self._detokenizer.feed(token_id)
        self._num_decoded += len(decoded)
        text = decoded if self._stops is None else self._stops.feed(decoded)
        whole = len(text) == len(decoded) > 0  # nothing was held before, so the stops can only have taken away
        if whole and not self._detokenizer.is_incomplete:
            self._num_out = self._num_decoded
            return TextStep(1, text, 1, (), None)
        if self._stops is not None and self._stops.stopped:
            self._stop_at = self._num_tokens
        self._pending.append((self._num_decoded + self._detokenizer.is_incomplete, None))
        return self._step(1, text, self._stop_at)

    def _feed_each(self, token_ids: Sequence[int], logprobs: Sequence[Any] | None) -> TextStep:
        parts: list[str] = []
        num_taken, stopped = len(token_ids), self._stop_at is not None
        for place, token_id in enumerate(token_ids):
            if self._stop_at is not None:
                break
            try:
                parts.append(self._feed_one(token_id, None if logprobs is None else logprobs[place]))
            except HeadraceError:
                if place == 0:
                    raise
                num_taken = place  # the text before it goes out; it raises again when it comes first
                break
        return self._step(num_taken, "".join(parts), None if stopped else self._stop_at)

    def _feed_one(self, token_id: int, logprob: Any) -> str:
        text = self._detokenizer.feed(token_id)
        self._num_tokens += 1
        self._num_decoded += len(text)
        # A token with bytes of an unfinished character is out only with that character.
        self._pending.append((self._num_decoded + self._detokenizer.is_incomplete, logprob))
        if self._stops is None:
            return text
        text = self._stops.feed(text)
        if self._stops.stopped:
            self._stop_at = self._num_tokens
        return text

    def _step(self, num_tokens: int, text: str, stop_at: int | None) -> TextStep:
        if not text:
            return TextStep(num_tokens, "", 0, (), stop_at)
        self._num_out += len(text)
        shown: list[Any] = []
        num_shown = 0
        pending = self._pending
        while pending and pending[0][0] <= self._num_out:
            _, logprob = pending.popleft()
            num_shown += 1
            if logprob is not None:
                shown.append(logprob)
        return TextStep(num_tokens, text, num_shown, tuple(shown), stop_at)
