"""A GGUF file as metadata and raw tensors. Names and meanings are the adapter's business (`gguf_model`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from headrace_worker.models.errors import CheckpointError

T = TypeVar("T", int, float, bool, str)


class GgufFile:
    """Raises CheckpointError, naming the file, when it is missing, truncated or no GGUF."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        if not path.is_file():
            raise CheckpointError(path.name, f"is missing from {path.parent}")
        try:
            reader = GGUFReader(path)
        except (ValueError, KeyError, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
            raise CheckpointError(path.name, f"is damaged or no GGUF file ({error})") from None
        self._fields = reader.fields
        self.raw_tensors: Mapping[str, Any] = {tensor.name: tensor for tensor in reader.tensors}

    def has(self, key: str) -> bool:
        """Whether the metadata holds this key."""
        return key in self._fields

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A scalar of the metadata; absent without a default is an error."""
        if not self.has(key):
            if default is None:
                raise CheckpointError(self.path.name, f"metadata lacks {key}")
            return default
        value = self._fields[key].contents()
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
        values = self._fields[key].contents()
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise CheckpointError(self.path.name, f"{key} must be an array of {kind.__name__}")
        return values
