"""Where one choice is in its grammar, and which ids may come next. Knows no batch and no logits."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace_worker.execution.match_budget import MatchBudget

if TYPE_CHECKING:
    from headrace_worker.execution.grammar_backend import Compiled


class Matcher:
    """`mask_W` has one bit per id, 32 to an int32 word; it holds once the future of `begin_mask` is done."""

    def __init__(self, compiled: Compiled, num_words: int) -> None:
        import xgrammar

        self.mask_W = torch.zeros(num_words, dtype=torch.int32)
        self.masked: Future[None] | None = None
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._budget = MatchBudget()

    def begin_mask(self, pool: ThreadPoolExecutor) -> Future[None]:
        """Compute the next mask on another thread; native code lets this one go on meanwhile."""
        self.masked = pool.submit(self._fill)
        return self.masked

    def accept(self, token_id: int) -> bool:
        """Move past a drawn id. False: no mask of ours has allowed it, or matching has become too slow to go on."""
        started_s = time.thread_time()
        accepted: bool = self._matcher.accept_token(token_id)
        self._budget.spend(time.thread_time() - started_s)
        return accepted and self._budget.next_token()

    @property
    def may_end(self) -> bool:
        """The text so far is a whole one."""
        return bool(self._matcher.is_completed())

    @property
    def has_ended(self) -> bool:
        """An end token was accepted."""
        return bool(self._matcher.is_terminated())

    def allows_any(self, ids_W: Tensor) -> bool:
        """Whether the mask allows one of the ids in a set of the mask's own form."""
        return bool((self.mask_W & ids_W).any())

    def _fill(self) -> None:
        started_s = time.thread_time()
        self._matcher.fill_next_token_bitmask(self.mask_W[None], 0)
        self._budget.spend(time.thread_time() - started_s)
