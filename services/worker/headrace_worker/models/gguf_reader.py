"""The bytes of a GGUF file -> metadata and tensor places (format: ggml's docs/gguf.md, versions 2 and 3).

The `gguf` package has a reader too; it takes seconds for a vocabulary and notices a cut file late. Every count and
offset is checked against the file's size before it is followed.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4


class GgufFormatError(ValueError):
    """The bytes are not a whole GGUF file; the text says where they stop making sense."""


@dataclass(frozen=True)
class TensorPlace:
    """`shape` is row-major (GGUF lists dimensions fastest first); `begin` counts from the start of the file."""

    shape: tuple[int, ...]
    type_number: int
    begin: int


@dataclass(frozen=True)
class GgufContents:
    """Metadata as plain Python values, and where each tensor's bytes begin."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]
    data: mmap.mmap


def read_gguf(path: Path) -> GgufContents:
    """Raises GgufFormatError. The map is private: writing to it never reaches the file."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise GgufFormatError("does not start with GGUF")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    cursor = _Cursor(data)
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise GgufFormatError(f"version {version}; 2 and 3 in little-endian order are known")
    num_tensors, num_fields = cursor.count("tensors"), cursor.count("fields")
    metadata = _unique(num_fields, lambda: (cursor.string(), cursor.value(cursor.scalar("<I"))))
    infos = _unique(num_tensors, lambda: (cursor.string(), cursor.tensor_info()))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise GgufFormatError(f"general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    places = {name: TensorPlace(shape, kind, start + offset) for name, (shape, kind, offset) in infos.items()}
    return GgufContents(metadata, places, data)


def _unique(num_entries: int, read: Callable[[], tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for _ in range(num_entries):
        name, entry = read()
        if name in entries:
            raise GgufFormatError(f"{name} appears twice")
        entries[name] = entry
    return entries


class _Cursor:
    """Reads forward from behind the magic number."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = len(_MAGIC)

    def scalar(self, form: str) -> Any:
        try:
            (value,) = struct.unpack_from(form, self._data, self.at)
        except struct.error:
            raise GgufFormatError(f"ends at byte {len(self._data)} in the middle of its header") from None
        self.at += struct.calcsize(form)
        return value

    def count(self, what: str) -> int:
        """A number of things that take at least a byte each."""
        value = int(self.scalar("<Q"))
        if value > len(self._data) - self.at:
            raise GgufFormatError(f"claims {value} {what}, more than its {len(self._data)} bytes can hold")
        return value

    def string(self) -> str:
        length = self.count("bytes of text")
        raw = self._data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise GgufFormatError(f"text before byte {self.at} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise GgufFormatError(f"unknown value type {kind} before byte {self.at}")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, length = self.scalar("<I"), self.count("array entries")
        if kind == _STRING:
            return [self.string() for _ in range(length)]
        if kind not in _SCALARS:
            raise GgufFormatError(f"array of type {kind} before byte {self.at}")
        form = f"<{length}{_SCALARS[kind][1]}"
        try:
            values = struct.unpack_from(form, self._data, self.at)
        except struct.error:
            raise GgufFormatError(f"ends at byte {len(self._data)} in the middle of an array") from None
        self.at += struct.calcsize(form)
        return list(values)

    def tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        num_dimensions = self.scalar("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise GgufFormatError(f"a tensor with {num_dimensions} dimensions before byte {self.at}")
        sizes = [self.scalar("<Q") for _ in range(num_dimensions)]
        return tuple(reversed(sizes)), self.scalar("<I"), self.scalar("<Q")
