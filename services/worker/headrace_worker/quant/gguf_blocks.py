"""GGUF's block-quantized tensors -> float32, through the `gguf` package, which defines the formats."""

from typing import Any

import numpy
import torch
from torch import Tensor


def dequantize(tensor: Any) -> Tensor:
    """A `gguf.ReaderTensor` as float32 in row-major shape (GGUF lists dimensions fastest first).

    Raises NotImplementedError for a block type that the package cannot expand.
    """
    from gguf.quants import dequantize as expand

    values = numpy.asarray(expand(tensor.data, tensor.tensor_type), dtype=numpy.float32)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return torch.from_numpy(numpy.require(values.reshape(shape), requirements=["C", "W"]))
