"""Models from the Hugging Face Hub, through `huggingface_hub`, which owns the protocol, the cache and the resuming."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headrace_worker.models.errors import ModelReferenceError
from headrace_worker.models.progress import Progress
from headrace_worker.models.reference import HubModel

WANTED = ("*.safetensors", "*.json", "*.jinja")
"""Weights in the one format that cannot run code, and what describes them; top level only."""


@dataclass(frozen=True)
class HubSnapshot:
    """A complete copy of the wanted files at one commit."""

    directory: Path
    commit: str


def fetch_hub_model(model: HubModel, cache_dir: Path, progress: Progress, endpoint: str | None = None) -> HubSnapshot:
    """Download what the cache lacks. `endpoint` stands for the Hub's address; None means the library's (HF_ENDPOINT).

    With the Hub out of reach, a revision that was fetched before is served from the cache. Raises ModelReferenceError
    when the repository, the revision or a way to it is missing.
    """
    from huggingface_hub import HfApi, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    where = f"hf:{model.repository}@{model.revision}"
    cache_dir = cache_dir.resolve()
    api = HfApi(endpoint=endpoint)
    try:
        info = api.model_info(model.repository, revision=model.revision, files_metadata=True)
    except errors.HfHubHTTPError as error:
        raise ModelReferenceError(f"{where}: {_first_line(error)}") from None
    except HTTPError as error:
        return _from_cache(model, cache_dir, f"{where}: the Hub cannot be reached ({_first_line(error)})")
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or () if _is_wanted(file.rfilename)}
    if not info.sha or not sizes:
        raise ModelReferenceError(f"{where}: the repository holds none of {', '.join(WANTED)}")
    arrival = _Arrival(sum(sizes.values()), progress)
    try:
        for name, size in sizes.items():
            path = api.hf_hub_download(
                model.repository, name, revision=info.sha, cache_dir=cache_dir, tqdm_class=_byte_counter(arrival.add)
            )
            arrival.complete(size)
    except (HTTPError, errors.LocalEntryNotFoundError) as error:
        raise ModelReferenceError(f"{where}: {name}: {_first_line(error)}") from None
    _remember(model, cache_dir, Path(path).parent)
    progress("download", 1.0)
    return HubSnapshot(Path(path).parent, info.sha)


def _note(model: HubModel, cache_dir: Path) -> Path:
    """Where we write down which commit of a revision is here as a whole; a fetch that broke off leaves no note."""
    name = hashlib.sha256(f"{model.repository}@{model.revision}".encode()).hexdigest()
    return cache_dir / "complete" / name


def _from_cache(model: HubModel, cache_dir: Path, reason: str) -> HubSnapshot:
    note = _note(model, cache_dir)
    directory = cache_dir / note.read_text() if note.exists() else None
    if directory is None or not directory.is_dir():
        raise ModelReferenceError(f"{reason}, and the cache does not hold this revision")
    return HubSnapshot(directory, directory.name)


def _remember(model: HubModel, cache_dir: Path, directory: Path) -> None:
    note = _note(model, cache_dir)
    note.parent.mkdir(parents=True, exist_ok=True)
    draft = note.with_suffix(f".{os.getpid()}")
    draft.write_text(str(directory.relative_to(cache_dir)))
    os.replace(draft, note)


def _is_wanted(name: str) -> bool:
    return "/" not in name and any(fnmatch(name, pattern) for pattern in WANTED)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Arrival:
    """Bytes of all files together; a file counts its whole size once it is here, however it came."""

    def __init__(self, total_bytes: int, progress: Progress) -> None:
        self._total_bytes = max(total_bytes, 1)
        self._progress = progress
        self._complete_bytes = 0
        self._partial_bytes = 0

    def add(self, num_bytes: int) -> None:
        self._partial_bytes += num_bytes
        self._progress("download", min((self._complete_bytes + self._partial_bytes) / self._total_bytes, 1.0))

    def complete(self, size_bytes: int) -> None:
        self._complete_bytes += size_bytes
        self._partial_bytes = 0
        self._progress("download", min(self._complete_bytes / self._total_bytes, 1.0))


def _byte_counter(add: Callable[[int], None]) -> type[Any]:
    """A progress bar class, which is how the library tells of bytes, that shows nothing and passes them on."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class ByteCounter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            add(int(n or 0))
            return None

    return ByteCounter
