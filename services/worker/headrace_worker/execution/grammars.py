"""The grammars of what runs: opens requests that have one, masks their draws, follows what was drawn.

    open --> compiled --> admit: a matcher per choice --> mask beside the forward pass --> draw --> advance --+
                                                                    ^-----------------------------------------+

A row whose matching fails, or takes too long, fails alone. Knows neither logits nor how a token is drawn.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

import torch

from headrace_worker.execution.grammar_backend import Vocabulary
from headrace_worker.execution.grammar_compiler import Compilation, GrammarCompiler
from headrace_worker.execution.matcher import Matcher
from headrace_worker.execution.runner import Opening
from headrace_worker.execution.token_mask import TokenMasks, num_words, pack_ids
from headrace_worker.scheduling.plan import ResultRow
from headrace_worker.scheduling.request import Request

log = logging.getLogger(__name__)
_MAX_THREADS = 4
# How long a step waits for the masks that are not there when the logits are.
MASK_WAIT_S = 2.0


class Grammars:
    """One per runner. Handles are learned with `admit` and forgotten with `release`."""

    def __init__(self, vocabulary: Vocabulary, compiler: GrammarCompiler, mask_wait_s: float = MASK_WAIT_S) -> None:
        self._compiler, self._mask_wait_s = compiler, mask_wait_s
        size = len(vocabulary.token_bytes)
        self._num_words = num_words(size)
        self._text_ids_W = ~pack_ids(vocabulary.end_token_ids, size)
        self._compilations: dict[int, Compilation] = {}
        self._matchers: dict[int, Matcher] = {}
        self._failed: set[int] = set()
        self._pool = self._new_pool()

    def load(self) -> None:
        """What would hold up requests that run if it came later."""
        self._compiler.load()

    def start(self) -> None:
        """Get ready in the background, so that the first request need not wait for it."""
        self._compiler.start()

    def open(self, request: Request) -> Opening:
        assert request.grammar is not None, f"handle {request.handle} has no grammar"
        compilation = self._compiler.compile(request.grammar, request.fair_key)
        self._compilations[request.handle] = compilation
        return compilation

    def close(self, handles: Iterable[int]) -> None:
        """Forget requests that were opened, or are being opened, and never admitted."""
        for handle in handles:
            compilation = self._compilations.pop(handle, None)
            if compilation is not None:
                compilation.abandoned = True

    def admit(self, request: Request) -> None:
        compilation = self._compilations.pop(request.handle, None)
        if compilation is None:
            return
        for handle in range(request.handle, request.handle + request.n):
            matcher = self._matchers[handle] = Matcher(compilation.compiled, self._num_words)
            matcher.begin_mask(self._pool)

    def release(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._matchers.pop(handle, None)
            self._failed.discard(handle)

    def masks(self, handles: Sequence[int]) -> TokenMasks | None:
        """Masks for the rows that draw, in their order; None if no row needs one. Waits for what is not there yet."""
        until_s = time.monotonic() + self._mask_wait_s
        rows = []
        for row, handle in enumerate(handles):
            matcher = self._matchers.get(handle)
            if matcher is None or handle in self._failed:
                continue
            assert matcher.masked is not None, f"no mask was begun for handle {handle}"
            if self._wait(handle, matcher.masked, until_s):
                rows.append(row)
        if not rows:
            return None
        return TokenMasks(rows, torch.stack([self._matchers[handles[row]].mask_W for row in rows]))

    def advance(self, results: list[ResultRow]) -> list[ResultRow]:
        """The same rows: failed where matching failed, complete where the grammar allows nothing more."""
        if not self._matchers:
            return results
        accepted = [self._accept(row) for row in results]
        ending = {row.handle for row in accepted if self._begin_next(row)}
        until_s = time.monotonic() + self._mask_wait_s
        return [row._replace(complete=self._is_complete(row.handle, until_s)) if row.handle in ending else row
                for row in accepted]  # fmt: skip

    def shut(self) -> None:
        """End every thread and process; for tests, as the engine's process ends them all."""
        self._compiler.close()
        self._pool.shutdown()

    def _accept(self, row: ResultRow) -> ResultRow:
        matcher = self._matchers.get(row.handle)
        if matcher is None or row.error is not None:
            return row
        if row.handle in self._failed:
            return ResultRow(row.handle, error="engine_error")
        if not all(matcher.accept(token_id) for token_id in row.token_ids):
            log.warning("grammar_failed: handle %d, a token was refused or matching is too slow", row.handle)
            self._failed.add(row.handle)
            return ResultRow(row.handle, error="engine_error")
        return row

    def _begin_next(self, row: ResultRow) -> bool:
        """Begin the next mask; whether the text is a whole one, so that it may be the last."""
        matcher = self._matchers.get(row.handle)
        if matcher is None or row.error is not None or not row.token_ids:
            return False
        if not matcher.has_ended:
            matcher.begin_mask(self._pool)
        return matcher.has_ended or matcher.may_end

    def _is_complete(self, handle: int, until_s: float) -> bool:
        """Whether nothing can follow but an end token."""
        matcher = self._matchers[handle]
        if matcher.has_ended:
            return True
        assert matcher.masked is not None, f"no mask was begun for handle {handle}"
        return self._wait(handle, matcher.masked, until_s) and not matcher.allows_any(self._text_ids_W)

    def _wait(self, handle: int, masked: Future[None], until_s: float) -> bool:
        """False, and the sequence is lost, if the mask cannot be had in time."""
        try:
            masked.result(max(0.0, until_s - time.monotonic()))
        except (FutureTimeoutError, RuntimeError) as error:
            log.warning("grammar_failed: handle %d, %r", handle, error)
            self._failed.add(handle)
            if isinstance(error, FutureTimeoutError):
                self._leave_pool()
            return False
        return True

    def _leave_pool(self) -> None:
        """A thread is stuck in native code: the others' masks get threads of their own."""
        self._pool.shutdown(wait=False)
        self._pool = self._new_pool()

    @staticmethod
    def _new_pool() -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="masks")
