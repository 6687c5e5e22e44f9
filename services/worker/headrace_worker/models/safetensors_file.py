"""One .safetensors file: its header is checked whole before any tensor is read (format: huggingface/safetensors).

Layout: 8 bytes little-endian header length, a JSON header, then the tensors' bytes, without gaps.
"""

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace_worker.models.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_CODE_DTYPES = {"F8_E4M3": torch.float8_e4m3fn, "I32": torch.int32}
_OTHER_DTYPES = {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "I32", "U32", "I64", "U64"}


@dataclass(frozen=True)
class _Span:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """Raises CheckpointError, naming the file, when anything about it does not add up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = self._size()
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise self._error(f"is {size} bytes long, too short for a header")
            (header_bytes,) = struct.unpack("<Q", prefix)
            if header_bytes > min(MAX_HEADER_BYTES, size - 8):
                raise self._error(f"header claims {header_bytes} bytes; the file has {size}")
            spans = self._parse(file.read(header_bytes))
            self._data_start = 8 + header_bytes
            self._check_layout(spans, size - self._data_start)
            self.spans: Mapping[str, _Span] = spans
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self, name: str) -> Tensor:
        """A tensor that shares the file's memory map."""
        span = self.spans[name]
        if span.dtype not in _DTYPES:
            raise self._error(f"{name} has type {span.dtype}; floating types {sorted(_DTYPES)} can be loaded")
        return self._view(span, _DTYPES[span.dtype])

    def read_codes(self, name: str) -> Tensor:
        """The same of a tensor of a quantized checkpoint: floating, or codes of E4M3 or in 32-bit words."""
        span = self.spans[name]
        known = _DTYPES | _CODE_DTYPES
        if span.dtype not in known:
            raise self._error(f"{name} has type {span.dtype}; {sorted(known)} are known in quantized checkpoints")
        return self._view(span, known[span.dtype])

    def _view(self, span: _Span, dtype: torch.dtype) -> Tensor:
        num_elements = math.prod(span.shape)
        if num_elements == 0:
            return torch.empty(span.shape, dtype=dtype)
        offset = self._data_start + span.begin
        return torch.frombuffer(self._map, dtype=dtype, count=num_elements, offset=offset).view(span.shape)

    def _error(self, detail: str) -> CheckpointError:
        return CheckpointError(self.path.name, detail)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            raise self._error(f"is missing from {self.path.parent}") from None

    def _parse(self, raw: bytes) -> dict[str, _Span]:
        try:
            header: Any = json.loads(raw)
        except ValueError:
            raise self._error("header is not JSON") from None
        if not isinstance(header, dict):
            raise self._error("header is not an object")
        header.pop("__metadata__", None)
        return {name: self._span(name, entry) for name, entry in header.items()}

    def _span(self, name: str, entry: Any) -> _Span:
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if all(
                isinstance(size, int) and size >= 0 for size in shape
            ):
                span = _Span(dtype, tuple(shape), begin, end)
            case _:
                raise self._error(f"header entry of {name} is malformed")
        if dtype not in _DTYPES:
            if dtype not in _OTHER_DTYPES:
                raise self._error(f"{name} has unknown type {dtype}")
            return span
        expected = math.prod(span.shape) * _DTYPES[dtype].itemsize
        if end - begin != expected:
            raise self._error(f"{name} has {end - begin} bytes; {dtype} {list(span.shape)} needs {expected}")
        return span

    def _check_layout(self, spans: Mapping[str, _Span], num_data_bytes: int) -> None:
        reached = 0
        for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
            if span.begin != reached or span.end < span.begin:
                raise self._error(f"{name} starts at byte {span.begin} of the data; {reached} was expected")
            reached = span.end
        if reached != num_data_bytes:
            raise self._error(f"holds {num_data_bytes} bytes of data; the header describes {reached}")
