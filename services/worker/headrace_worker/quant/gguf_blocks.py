"""GGUF's block-quantized tensors -> float32, through the `gguf` package, which defines the formats."""

import math
import mmap

import numpy
import torch
from torch import Tensor


class BlockTypeError(ValueError):
    """A block type that `gguf` does not know or cannot expand, or a row that is no whole number of blocks."""


class GgufTensor:
    """A tensor inside a memory map. Shape is row-major; rows are whole numbers of blocks."""

    def __init__(self, data: mmap.mmap, begin: int, shape: tuple[int, ...], type_number: int) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            self._type = GGMLQuantizationType(type_number)
            block_size, block_bytes = GGML_QUANT_SIZES[self._type]
        except (ValueError, KeyError):
            raise BlockTypeError(f"block type {type_number} is not known") from None
        row_size = shape[-1] if shape else 1
        if row_size % block_size:
            raise BlockTypeError(f"rows of {row_size} are not whole {self._type.name} blocks of {block_size}")
        self.shape = shape
        self.begin = begin
        self._data = data
        self._row_bytes = row_size // block_size * block_bytes
        self.num_bytes = math.prod(shape[:-1]) * self._row_bytes

    def dequantize(self, start: int = 0, size: int | None = None) -> Tensor:
        """float32 values in the tensor's shape; what was stored as float32 shares the file's map.

        With `size`, only indices start .. start + size - 1 of the first of at least two dimensions.
        """
        from gguf.quants import dequantize

        shape, begin, num_bytes = self.shape, self.begin, self.num_bytes
        if size is not None:
            index_bytes = self.num_bytes // self.shape[0]
            shape, begin, num_bytes = (size, *self.shape[1:]), begin + start * index_bytes, size * index_bytes
        raw = numpy.frombuffer(self._data, numpy.uint8, num_bytes, begin).reshape(-1, self._row_bytes)
        try:
            values = dequantize(raw, self._type)
        except NotImplementedError:
            raise BlockTypeError(f"{self._type.name} blocks cannot be expanded") from None
        return torch.from_numpy(numpy.ascontiguousarray(values, dtype=numpy.float32)).reshape(shape)
