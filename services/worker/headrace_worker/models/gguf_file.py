"""A GGUF file as typed metadata and quantized tensors. Names and meanings are the adapter's business (`gguf_model`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.gguf_reader import GgufContents, GgufFormatError, TensorPlace, read_gguf
from headrace_worker.quant.gguf_blocks import BlockTypeError, GgufTensor

T = TypeVar("T", int, float, bool, str)


class GgufFile:
    """Raises CheckpointError, naming the file, when it is missing, truncated or no GGUF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CheckpointError(path.name, f"is missing from {path.parent}")
        try:
            contents = read_gguf(path)
        except (GgufFormatError, ValueError) as error:  # mmap says ValueError to an empty file
            raise CheckpointError(path.name, str(error)) from None
        self._metadata = contents.metadata
        self.tensors: Mapping[str, GgufTensor] = {
            name: self._tensor(name, place, contents) for name, place in contents.tensors.items()
        }
        self._check_layout()

    def _tensor(self, name: str, place: TensorPlace, contents: GgufContents) -> GgufTensor:
        try:
            tensor = GgufTensor(contents.data, place.begin, place.shape, place.type_number)
        except BlockTypeError as error:
            raise UnsupportedModelError(f"{self.path.name}: {name}: {error}") from None
        end, size = place.begin + tensor.num_bytes, len(contents.data)
        if end > size:
            raise CheckpointError(self.path.name, f"is cut short: {name} ends at byte {end} of {size}")
        return tensor

    def _check_layout(self) -> None:
        end = 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1].begin):
            if tensor.begin < end:
                raise CheckpointError(self.path.name, f"{name} overlaps the tensor before it")
            end = tensor.begin + tensor.num_bytes

    def has(self, key: str) -> bool:
        """Whether the metadata holds this key."""
        return key in self._metadata

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A scalar of the metadata; absent without a default is an error."""
        value = self._metadata.get(key, default)
        if value is None:
            raise CheckpointError(self.path.name, f"metadata lacks {key}")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(self.path.name, f"{key} must be {kind.__name__}, is {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.get(key, int, default)
        if value <= 0:
            raise CheckpointError(self.path.name, f"{key} must be positive, is {value}")
        return value

    def array(self, key: str, kind: type[T]) -> list[T]:
        """An array of the metadata, all of one type."""
        if not self.has(key):
            raise CheckpointError(self.path.name, f"metadata lacks {key}")
        values = self._metadata[key]
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise CheckpointError(self.path.name, f"{key} must be an array of {kind.__name__}")
        return values
