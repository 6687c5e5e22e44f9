"""Reading the JSON files of a checkpoint, with errors that name the file and the field."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from headrace_worker.models.errors import CheckpointError

T = TypeVar("T", int, float, bool, str)


class JsonFile:
    """A JSON object on disk. A missing file is an error unless `optional`, then it is empty."""

    def __init__(self, path: Path, optional: bool = False) -> None:
        self.name = path.name
        self.values: Mapping[str, Any] = {}
        if optional and not path.exists():
            return
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(self.name, f"is missing from {path.parent}") from None
        except ValueError:
            raise CheckpointError(self.name, "is not JSON") from None
        if not isinstance(values, dict):
            raise CheckpointError(self.name, "is not an object")
        self.values = values

    def get(self, field: str, kind: type[T], default: T | None = None) -> T:
        """The field's value; null counts as absent; absent without a default is an error."""
        value = self.values.get(field)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(self.name, f"{field} is missing")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(self.name, f"{field} must be {kind.__name__}, is {value!r}")
        return value

    def positive(self, field: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value = self.get(field, int, default)
        if value <= 0:
            raise CheckpointError(self.name, f"{field} must be positive, is {value}")
        return value
