"""What every model family offers the engine. Knows nothing of requests, pages or sampling."""

from abc import abstractmethod

from torch import Tensor, nn

from headrace_worker.attention.base import AttentionStep
from headrace_worker.models.model_config import ModelConfig


class CausalLM(nn.Module):
    """A decoder-only language model over flat rows; shape suffixes are those of `attention.base`.

    `forward` and `compute_logits` are two calls because logits are wanted for few of a step's rows.
    """

    config: ModelConfig

    @abstractmethod
    def forward(
        self, ids_T: Tensor, positions_T: Tensor, attention: AttentionStep, rows_R: Tensor | None = None
    ) -> Tensor:
        """int64 ids and absolute positions of this step's rows -> normed hidden states [T, E].

        Of the last layer of all only `rows_R` (int64) are wanted, if given: then they are [R, E].

        A later pipeline stage takes the hidden states of the one before instead of ids; only the last one norms them.
        Padding rows carry any id of the vocabulary (0) and position 0.
        """

    @abstractmethod
    def compute_logits(self, hidden_RE: Tensor) -> Tensor:
        """Rows picked from what `forward` returned -> float32 logits [R, V]."""
