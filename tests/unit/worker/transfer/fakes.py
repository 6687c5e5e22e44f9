"""Pools with known content, whole or in shards, as images of this process."""

from __future__ import annotations

import numpy as np

from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.pages import PoolImages
from headrace_worker.transfer.shape import KvShape, Shard

SHAPE = KvShape(num_layers=4, num_kv_heads=4, head_dim=4, dtype="float32", page_tokens=16)
NUM_PAGES = 12


def make_pool(tp: int = 1, pp: int = 1, shape: KvShape = SHAPE, num_pages: int = NUM_PAGES) -> PoolImages:
    """A pool of zeros in tp * pp images."""
    heads, layers = max(1, shape.num_kv_heads // tp), shape.num_layers // pp
    shards = [
        Shard(stage * layers, layers, rank * shape.num_kv_heads // tp, heads)
        for stage in range(pp)
        for rank in range(tp)
    ]
    return PoolImages([PageImage.create(shape, shard, num_pages) for shard in shards])


def fill(pool: PoolImages, seed: int = 1) -> None:
    """Words that tell where they are, the same however the pool is sharded."""
    rng = np.random.default_rng(seed)
    shape = pool.shape
    dims = (shape.num_layers, 2, pool.num_pages, shape.page_tokens, shape.num_kv_heads, shape.head_words)
    whole = rng.integers(0, 2**63, size=dims, dtype=np.uint64)
    for image in pool.images:
        shard = image.ref.shard
        image.words[:] = whole[shard.first_layer : shard.first_layer + shard.num_layers, :, :, :, shard.heads]


def content(pool: PoolImages, pages: list[int]) -> bytes:
    """Of these pages, all layers."""
    return b"".join(pool.pieces(range(pool.shape.num_layers), pages))
