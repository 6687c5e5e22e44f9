"""From a checkpoint to a model that is ready to run: built, filled, packed and, where promised, proved invariant."""

from collections.abc import Callable

from headrace_worker.models.checkpoint import ModelFiles
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.progress import Progress, silent
from headrace_worker.models.quantized_directory import QuantizedDirectory
from headrace_worker.models.registry import BuildOptions, build_model
from headrace_worker.models.weights import fill_model, prove_invariance


def alone() -> None:
    """Nobody is waited for."""


def load_model(
    files: ModelFiles, options: BuildOptions, progress: Progress = silent, meet: Callable[[], None] = alone
) -> LlamaForCausalLM:
    """All of a model, or one rank's part, as `options` say. `meet` returns when all ranks have read their weights.

    Raises CheckpointError or UnsupportedModelError; nothing half-loaded is ever returned.
    """
    model = build_model(files.config, options)
    weights = files.weights
    if options.grid is None and isinstance(weights, QuantizedDirectory):
        weights = weights.dequantized()
    fill_model(model, weights, lambda share: progress("load", share), meet)
    if options.deterministic:
        prove_invariance(model)
    return model.eval()
