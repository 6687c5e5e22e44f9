"""Token embedding and output head, split over the vocabulary at tensor-parallel sizes above 1.

Every rank holds as many rows; where the vocabulary does not divide, the last ones of the last ranks are padding.
"""

import torch
from torch import Tensor
from torch.nn import functional

from headrace_worker.layers.setting import LayerSetting
from headrace_worker.layers.weight_slot import WeightLayer, WeightSlot, rows_slot


def _own_rows(weight_VE: Tensor, vocab_size: int, rank: int) -> WeightSlot:
    start = min(rank * weight_VE.shape[0], vocab_size)
    num_rows = min(weight_VE.shape[0], vocab_size - start)
    weight_VE[num_rows:] = 0
    return rows_slot((vocab_size, weight_VE.shape[1]), weight_VE[:num_rows], start, num_rows)


class VocabParallelEmbedding(WeightLayer):
    """ids [T] -> rows [T, E]. A rank looks up its own part of the vocabulary; the others' rows are zero."""

    def __init__(self, vocab_size: int, hidden_size: int, setting: LayerSetting) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.setting = setting
        self.weight: Tensor = setting.empty(setting.shard.padded_part(vocab_size), hidden_size)

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        return {f"{own_name}.weight": _own_rows(self.weight, self.vocab_size, self.setting.shard.rank)}

    def forward(self, ids_T: Tensor) -> Tensor:
        shard = self.setting.shard
        if shard.size == 1:
            return functional.embedding(ids_T, self.weight)
        local_T = ids_T - shard.rank * self.weight.shape[0]
        mine_T = (local_T >= 0) & (local_T < self.weight.shape[0])
        rows_TE = functional.embedding(local_T.where(mine_T, 0), self.weight)
        return shard.all_reduce(rows_TE.masked_fill(~mine_T[:, None], 0))


class VocabParallelHead(WeightLayer):
    """hidden [R, E] -> float32 logits [R, V], of use on the group's first rank.

    Tied heads multiply by the embedding's weight and own no slot.
    """

    def __init__(self, vocab_size: int, hidden_size: int, setting: LayerSetting, tied: bool) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.setting = setting
        self.tied = tied
        self.weight: Tensor = setting.empty(0 if tied else setting.shard.padded_part(vocab_size), hidden_size)

    def tie(self, embedding: VocabParallelEmbedding) -> None:
        """Read the embedding's weight; called before `pack`."""
        assert self.tied, "this head has its own weight"
        self.weight = embedding.weight

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        if self.tied:
            return {}
        return {f"{own_name}.weight": _own_rows(self.weight, self.vocab_size, self.setting.shard.rank)}

    def pack(self) -> None:
        self.weight = self.setting.gemm.pack(self.weight)

    def forward(self, hidden_RE: Tensor) -> Tensor:
        logits_RV = self.setting.gemm.multiply(hidden_RE, self.weight, None)
        return self.setting.shard.gather(logits_RV)[:, : self.vocab_size].to(torch.float32)
