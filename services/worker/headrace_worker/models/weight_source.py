"""Where a model's weights come from: named tensors, described before any is read. Knows no model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headrace_worker.layers.weight_slot import Region


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    file: str
    """Name of the file that holds it, for messages."""
    num_bytes: int
    """Bytes in the file, for progress."""


class WeightSource(ABC):
    """Tensors by the names that Hugging Face checkpoints use. Opening one has validated every file."""

    @abstractmethod
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the checkpoint."""

    @abstractmethod
    def read(self, name: str, region: Region | None = None) -> Tensor:
        """One tensor or a region of it, in a floating dtype. It may alias the file: copy what is to live on.

        Of the file no more is read, or dequantized, than the region needs.
        """

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """File name -> hex SHA-256 of its content, for the fingerprint."""
