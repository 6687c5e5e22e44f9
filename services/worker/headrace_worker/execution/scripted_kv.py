"""KV for the scripted engine in a split pool: each slot holds the token that was computed there, so a reader can tell.

One layer, one head of one word; the keys are token ids plus one, the values positions. A row whose earlier slots do not
hold its own prompt has been given the pages of somebody else, and fails.
"""

from __future__ import annotations

import numpy as np

from headrace_worker.scheduling.plan import Plan, PlanRow
from headrace_worker.transfer.image import ImageRef, PageImage
from headrace_worker.transfer.shape import KvShape, Shard

_SHAPE = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, "dtype": "none"}


class ScriptedKv:
    """The pool of a scripted replica; `prompts` come with the plans that admit them."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.image = PageImage.create(KvShape(**_SHAPE, page_tokens=page_tokens), Shard(0, 1, 0, 1), num_pages + 1)  # type: ignore[arg-type]
        self._page_tokens = page_tokens
        self._slots = self.image.words[0, :, :, :, 0, 0].reshape(2, -1)

    @property
    def ref(self) -> ImageRef:
        return self.image.ref

    def run(self, plan: Plan) -> None:
        """Copies, then writes of every row."""
        words = self.image.words[0]
        for source, target, num_tokens in plan.copies:
            words[:, target, :num_tokens] = words[:, source, :num_tokens]
        for row in plan.rows:
            first = max(row.start, row.write_from)
            positions = range(first, row.start + len(row.token_ids))
            for position in positions:
                slot = self._slot(row, position)
                self._slots[:, slot] = row.token_ids[position - row.start] + 1, position

    def holds(self, row: PlanRow, prompt: np.typing.NDArray[np.uint64]) -> bool:
        """Whether the row reads, before its own tokens, those of this prompt."""
        num_seen = min(row.start, len(prompt))
        slots = [self._slot(row, position) for position in range(num_seen)]
        same = np.array_equal(self._slots[0, slots], prompt[:num_seen] + np.uint64(1))
        return same and np.array_equal(self._slots[1, slots], np.arange(num_seen, dtype=np.uint64))

    def _slot(self, row: PlanRow, position: int) -> int:
        return row.page_table[position // self._page_tokens] * self._page_tokens + position % self._page_tokens
