"""From a configuration to a torch runner with its weights in memory. Knows no plans."""

from __future__ import annotations

import logging
import os

import torch

from headrace_worker.attention.registry import select_attention
from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.grammar_backend import Vocabulary, is_installed
from headrace_worker.execution.grammar_compiler import GrammarCompiler
from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.runner import Progress, RunnerError
from headrace_worker.execution.torch_runner import Loaded, TorchRunner
from headrace_worker.models.checkpoint import Checkpoint, open_checkpoint
from headrace_worker.models.errors import ModelError
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from headrace_worker.models.token_bytes import read_token_bytes

log = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_torch_runner(config: WorkerConfig, progress: Progress) -> TorchRunner:
    """Fetches, validates and loads the weights. Raises RunnerError (the text names the file) or ConfigError."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda was asked for and torch sees no such device")

    def named(phase: str, share: float) -> None:
        progress("weights" if phase == "load" else phase, share)

    torch.set_num_threads(config.threads or num_cores())
    try:
        checkpoint = open_checkpoint(config.source, config.state_dir / "models", named)
        max_context = _max_context(config, checkpoint.config.max_position)
        options = BuildOptions(config.device, _DTYPES[config.precision], config.deterministic)
        model = load_model(checkpoint, options, named)
    except ModelError as error:
        raise RunnerError(str(error)) from error
    attention = select_attention(config.deterministic)
    loaded = Loaded(checkpoint, model, attention, options.dtype, torch.device(config.device))
    return TorchRunner(config, loaded, max_context, build_grammars(checkpoint))


def build_grammars(checkpoint: Checkpoint) -> Grammars | None:
    """None, and the reason is logged, where constraints cannot be served. Starts nothing."""
    if not is_installed():
        log.info("grammars_off: xgrammar is not installed")
        return None
    token_bytes = read_token_bytes(checkpoint.text.tokenizer_json, checkpoint.config.vocab_size)
    if token_bytes is None:
        log.warning("grammars_off: the tokenizer of %s is of a kind whose bytes are not known", checkpoint.name)
        return None
    vocabulary = Vocabulary(token_bytes, checkpoint.text.end_token_ids)
    return Grammars(vocabulary, GrammarCompiler(vocabulary))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _max_context(config: WorkerConfig, max_position: int) -> int:
    if config.max_context is not None and config.max_context > max_position:
        raise ConfigError("max_context", f"is {config.max_context}; the model knows {max_position} positions")
    return config.max_context or max_position
