"""Random attention steps and the plainest possible attention to judge them by."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.attention.base import AttentionBackend, AttentionBatch, KvPages

NUM_KV_HEADS = 2
NUM_HEADS = 6
HEAD_DIM = 16
SCALE = HEAD_DIM**-0.5


@dataclass
class Story:
    """One sequence with all its rows, and the pages that it lives in."""

    q_LND: Tensor
    k_LKD: Tensor
    v_LKD: Tensor
    pages: list[int]


def make_story(length: int, pages: list[int], seed: int) -> Story:
    generator = torch.Generator().manual_seed(seed)
    q_LND = torch.randn(length, NUM_HEADS, HEAD_DIM, generator=generator)
    k_LKD, v_LKD = torch.randn(2, length, NUM_KV_HEADS, HEAD_DIM, generator=generator)
    return Story(q_LND, k_LKD, v_LKD, pages)


def make_pages(num_pages: int, page_size: int, fill: float = 0.0) -> KvPages:
    """One layer's pages; page 0 is always zeros."""
    k_PBKD, v_PBKD = torch.full((2, num_pages, page_size, NUM_KV_HEADS, HEAD_DIM), fill)
    k_PBKD[0] = v_PBKD[0] = 0
    return KvPages(k_PBKD, v_PBKD)


def run_step(
    backend: AttentionBackend,
    kv: KvPages,
    parts: list[tuple[Story, int, int]],
    window: int | None = None,
    num_padding: int = 0,
) -> list[Tensor]:
    """Rows start .. end of each story in one step; returns their outputs."""
    batch = AttentionBatch.build(
        query_lens=[end - start for _, start, end in parts],
        kv_lens=[end for _, _, end in parts],
        page_tables=[story.pages for story, _, _ in parts],
        page_size=kv.k_PBKD.shape[1],
        num_rows=sum(end - start for _, start, end in parts) + num_padding,
    )
    padding = torch.full((num_padding, NUM_HEADS, HEAD_DIM), 7.0)
    q_TND = torch.cat([story.q_LND[start:end] for story, start, end in parts] + [padding])
    kv_padding = padding[:, :NUM_KV_HEADS]
    k_TKD = torch.cat([story.k_LKD[start:end] for story, start, end in parts] + [kv_padding])
    v_TKD = torch.cat([story.v_LKD[start:end] for story, start, end in parts] + [kv_padding])
    out_TND = backend.begin(batch, [kv], SCALE).attend(0, q_TND, k_TKD, v_TKD, window)
    assert out_TND.shape == q_TND.shape
    assert torch.equal(out_TND[out_TND.shape[0] - num_padding :], torch.zeros_like(padding))
    ends = list(itertools.accumulate(batch.query_lens))
    return [out_TND[end - length : end] for length, end in zip(batch.query_lens, ends, strict=True)]


def plain_attention(story: Story, window: int | None = None) -> Tensor:
    """Every row of a story over its whole past, one row and one head at a time, in float64."""
    out = torch.empty_like(story.q_LND)
    for position in range(story.q_LND.shape[0]):
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(NUM_HEADS):
            kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
            keys = story.k_LKD[first : position + 1, kv_head].double()
            shares = (keys @ story.q_LND[position, head].double() * SCALE).softmax(0)
            out[position, head] = (shares @ story.v_LKD[first : position + 1, kv_head].double()).float()
    return out
