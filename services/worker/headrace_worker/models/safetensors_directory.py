"""A Hugging Face checkpoint directory: one or several .safetensors files, honoured as their index says."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.file_digest import sha256_of_file
from headrace_worker.models.safetensors_file import SafetensorsFile
from headrace_worker.models.weight_source import TensorInfo, WeightSource

INDEX_NAME = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")


class SafetensorsDirectory(WeightSource):
    """With an index, each tensor comes from the file that the index names and from no other; files that it does not
    name, and tensors that it places elsewhere, are left alone. Without one, every file counts and no name may repeat.
    """

    def __init__(self, directory: Path) -> None:
        index_path = directory / INDEX_NAME
        if index_path.exists():
            file_of = _read_index(index_path)
            names = sorted(set(file_of.values()))
        else:
            names = _complete_shards(directory)
            file_of = {}
        self._files = {name: SafetensorsFile(directory / name) for name in names}
        self._file_of = file_of or self._by_header()
        for tensor, name in self._file_of.items():
            if tensor not in self._files[name].spans:
                raise CheckpointError(name, f"lacks {tensor}, which {INDEX_NAME} places there")

    def _by_header(self) -> dict[str, str]:
        file_of: dict[str, str] = {}
        for name, file in self._files.items():
            for tensor in file.spans:
                if tensor in file_of:
                    raise CheckpointError(
                        name, f"holds {tensor} again ({file_of[tensor]} has it) and there is no index"
                    )
                file_of[tensor] = name
        return file_of

    def tensors(self) -> Mapping[str, TensorInfo]:
        infos = {}
        for tensor, name in self._file_of.items():
            span = self._files[name].spans[tensor]
            infos[tensor] = TensorInfo(span.shape, name, span.end - span.begin)
        return infos

    def read(self, name: str, region: Region | None = None) -> Tensor:
        mapped = self._files[self._file_of[name]].read(name)
        return mapped if region is None else region.of(mapped)

    def read_codes(self, name: str) -> Tensor:
        """As `SafetensorsFile.read_codes`."""
        return self._files[self._file_of[name]].read_codes(name)

    def identity(self) -> Mapping[str, str]:
        return {name: sha256_of_file(file.path) for name, file in self._files.items()}


def _read_index(path: Path) -> dict[str, str]:
    try:
        index: Any = json.loads(path.read_bytes())
    except ValueError:
        raise CheckpointError(path.name, "is not JSON") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(path.name, "has no weight_map")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(path.name, f"{tensor}: {name!r} is not the name of a .safetensors file beside it")
    return weight_map


def _complete_shards(directory: Path) -> list[str]:
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise CheckpointError("model.safetensors", f"is missing from {directory}, and so is {INDEX_NAME}")
    matches = [match for name in names if (match := _SHARD_NAME.fullmatch(name))]
    expected = {
        f"{match['stem']}-{number:05d}-of-{match['total']}.safetensors"
        for match in matches
        for number in range(1, int(match["total"]) + 1)
    }
    for missing in sorted(expected - set(names)):
        raise CheckpointError(missing, f"is missing from {directory}")
    return names
