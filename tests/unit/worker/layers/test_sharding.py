"""Tensor-parallel shards: what the ranks compute together is what one rank computes alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace_worker.kernels.gemm import PlainGemm
from headrace_worker.layers.embedding import VocabParallelEmbedding, VocabParallelHead
from headrace_worker.layers.linear import ColumnParallelLinear, Part, RowParallelLinear, qkv_parts
from headrace_worker.layers.setting import LayerSetting, Shard
from headrace_worker.layers.weight_slot import WeightLayer

TENSORS = torch.Generator().manual_seed(0)


def setting(rank: int, size: int) -> LayerSetting:
    return LayerSetting(gemm=PlainGemm(), shard=Shard(rank, size))


def fill(layer: WeightLayer, tensors: dict[str, Tensor]) -> None:
    slots = layer.slots("layer")
    assert {name: slot.shape for name, slot in slots.items()} == {name: tuple(t.shape) for name, t in tensors.items()}
    for name, slot in slots.items():
        slot.fill(slot.cut(tensors[name]))


def ranks(build: Callable[[LayerSetting], WeightLayer], tensors: dict[str, Tensor], size: int) -> list[WeightLayer]:
    layers = [build(setting(rank, size)) for rank in range(size)]
    for layer in layers:
        fill(layer, tensors)
    return layers


@pytest.mark.parametrize("size", [1, 2, 4])
def test_merged_columns_concatenate_per_part(size: int) -> None:
    tensors = {
        f"{name}.{kind}": torch.randn(*shape, generator=TENSORS)
        for name in ("gate", "up")
        for kind, shape in (("weight", (8, 6)), ("bias", (8,)))
    }
    build = lambda s: ColumnParallelLinear(6, {"gate": Part(8, size), "up": Part(8, size)}, True, s)  # noqa: E731
    rows = torch.randn(3, 6, generator=TENSORS)
    outs = [layer(rows) for layer in ranks(build, tensors, size)]
    for number, name in enumerate(("gate", "up")):
        whole = torch.cat([out.chunk(2, dim=-1)[number] for out in outs], dim=-1)
        expected = torch.nn.functional.linear(rows, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
        torch.testing.assert_close(whole, expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_row_shards_add_up_and_the_bias_counts_once(size: int) -> None:
    tensors = {"layer.weight": torch.randn(5, 8, generator=TENSORS), "layer.bias": torch.randn(5, generator=TENSORS)}
    layers = ranks(lambda s: RowParallelLinear(8, 5, True, s), tensors, size)
    rows = torch.randn(3, 8, generator=TENSORS)
    partial = [layer(part) for layer, part in zip(layers, rows.chunk(size, dim=-1), strict=True)]
    expected = torch.nn.functional.linear(rows, tensors["layer.weight"], tensors["layer.bias"])
    torch.testing.assert_close(torch.stack(partial).sum(0), expected)


def test_ranks_beyond_the_kv_heads_share_them() -> None:
    """Four query heads and two KV heads over four ranks: ranks 0 and 1 hold KV head 0, ranks 2 and 3 head 1."""
    tensors = {
        "q_proj.weight": torch.randn(8, 4, generator=TENSORS),
        "k_proj.weight": torch.randn(4, 4, generator=TENSORS),
        "v_proj.weight": torch.randn(4, 4, generator=TENSORS),
    }
    layers = ranks(lambda s: ColumnParallelLinear(4, qkv_parts(4, 2, 2, s), False, s), tensors, 4)
    for rank, layer in enumerate(layers):
        assert isinstance(layer, ColumnParallelLinear)
        query, key, value = layer.weight.chunk(3)
        assert torch.equal(query, tensors["q_proj.weight"][2 * rank : 2 * rank + 2])
        first = rank // 2 * 2
        assert torch.equal(key, tensors["k_proj.weight"][first : first + 2])
        assert torch.equal(value, tensors["v_proj.weight"][first : first + 2])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_vocabulary_shards_look_up_and_score_like_one(size: int) -> None:
    weight = torch.randn(10, 4, generator=TENSORS)
    embeddings = ranks(lambda s: VocabParallelEmbedding(10, 4, s), {"layer.weight": weight}, size)
    ids = torch.tensor([0, 4, 5, 9, 9])
    torch.testing.assert_close(torch.stack([layer(ids) for layer in embeddings]).sum(0), weight[ids])
    heads = ranks(lambda s: VocabParallelHead(10, 4, s, tied=False), {"layer.weight": weight}, size)
    rows = torch.randn(3, 4, generator=TENSORS)
    torch.testing.assert_close(torch.cat([head(rows) for head in heads], dim=-1)[:, :10], rows @ weight.t())


def test_a_dimension_that_does_not_split_is_refused() -> None:
    with pytest.raises(AssertionError, match="not divisible"):
        RowParallelLinear(9, 4, False, setting(0, 2))
