"""The smallest engine: one sequence after another through a model over real pages, for tests of models alone."""

import dataclasses

import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBatch, KvPages
from headrace_worker.attention.registry import select_attention
from headrace_worker.models.llama import LlamaForCausalLM

PAGE_SIZE = 16


class Driver:
    """Sequences by number, each with its own run of pages; every call is one step."""

    def __init__(self, model: LlamaForCausalLM, deterministic: bool, num_sequences: int = 4, max_tokens: int = 256):
        self.model = model
        self.backend = select_attention(deterministic)
        config = model.config
        self.num_pages = -(-max_tokens // PAGE_SIZE)
        shape = (1 + num_sequences * self.num_pages, PAGE_SIZE, config.num_kv_heads, config.head_dim)
        dtype = model.model.embed_tokens.weight.dtype
        self.kv = [
            KvPages(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_layers)
        ]
        self.tables = [
            list(range(1 + number * self.num_pages, 1 + (number + 1) * self.num_pages))
            for number in range(num_sequences)
        ]
        self.reached = [0] * num_sequences

    @torch.inference_mode()
    def step(
        self, rows: dict[int, list[int]], write: bool = True, wanted: list[int] | None = None
    ) -> dict[int, Tensor]:
        """New ids per sequence -> logits of each of these rows. Without `write`, their KV goes to the null page.

        Of `wanted` rows, numbered through the step, all logits come under -1.
        """
        query_lens = [len(ids) for ids in rows.values()]
        starts = [self.reached[number] for number in rows]
        kv_lens = [start + length for start, length in zip(starts, query_lens, strict=True)]
        batch = AttentionBatch.build(query_lens, kv_lens, [self.tables[number] for number in rows], PAGE_SIZE)
        if not write:
            batch = dataclasses.replace(batch, slots_T=torch.zeros_like(batch.slots_T))
        positions = torch.cat([torch.arange(start, end) for start, end in zip(starts, kv_lens, strict=True)])
        ids = torch.tensor([token for tokens in rows.values() for token in tokens])
        attention = self.backend.begin(batch, self.kv, self.model.config.attention_scale)
        rows_R = None if wanted is None else torch.tensor(wanted, dtype=torch.int64)
        logits = self.model.compute_logits(self.model(ids, positions, attention, rows_R))
        for number, end in zip(rows, kv_lens, strict=True):
            self.reached[number] = end
        if wanted is not None:
            return {-1: logits}
        return dict(zip(rows, torch.tensor_split(logits, torch.tensor(query_lens).cumsum(0)[:-1]), strict=True))

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The first sequence's continuation; end tokens do not end it."""
        self.reached[0] = 0
        out = [int(self.step({0: prompt})[0][-1].argmax())]
        while len(out) < num_tokens:
            out.append(int(self.step({0: [out[-1]]})[0][-1].argmax()))
        return out
