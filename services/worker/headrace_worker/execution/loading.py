"""From a configuration to a torch runner with its weights in memory. Knows no plans."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

import torch

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution import rank_messages
from headrace_worker.execution.grammar_backend import Vocabulary, is_installed
from headrace_worker.execution.grammar_compiler import GrammarCompiler
from headrace_worker.execution.grammars import Grammars
from headrace_worker.execution.group_steps import GroupSteps
from headrace_worker.execution.loaded import Loaded
from headrace_worker.execution.part import check_layout, load_alone, load_part
from headrace_worker.execution.rank_steps import RankSteps
from headrace_worker.execution.ranks import Ranks
from headrace_worker.execution.replica_roofline import roofline_of
from headrace_worker.execution.runner import Progress, RunnerError
from headrace_worker.execution.steps import Steps
from headrace_worker.execution.torch_runner import Served, TorchRunner
from headrace_worker.models.checkpoint import Checkpoint, open_checkpoint
from headrace_worker.models.errors import ModelError
from headrace_worker.models.token_bytes import read_token_bytes
from headrace_worker.parallel.collectives import CollectiveFailed
from headrace_worker.parallel.links import read_domains
from headrace_worker.parallel.place import Place
from headrace_worker.perf.layout import Layout

log = logging.getLogger(__name__)


def load_torch_runner(
    config: WorkerConfig, progress: Progress, on_lost: Callable[[str], None] | None = None
) -> TorchRunner:
    """Fetches, validates and loads the weights, in as many processes as the layout has ranks.

    Raises RunnerError (the text names the file) or ConfigError. `on_lost` hears, from a thread, why a group is over.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda was asked for and torch sees no such device")

    def named(phase: str, share: float) -> None:
        progress("weights" if phase == "load" else phase, share)

    try:
        checkpoint = open_checkpoint(config.source, config.state_dir / "models", named)
        max_context = _max_context(config, checkpoint.config.max_position)
        layout = check_layout(config, checkpoint.config, checkpoint.name)
        if layout.num_devices == 1:
            loaded = load_alone(config, checkpoint, named)
            steps: Steps = RankSteps(config, loaded)
        else:
            loaded, steps = _load_group(config, checkpoint, named, Ranks(config, on_lost))
    except ModelError as error:
        raise RunnerError(str(error)) from error
    roofline = roofline_of(config, checkpoint.config, checkpoint.name)
    served = Served(checkpoint, max_context, build_grammars(checkpoint), _domains(config), roofline)
    return TorchRunner(config, loaded, served, steps)


def _load_group(
    config: WorkerConfig, checkpoint: Checkpoint, named: Progress, ranks: Ranks
) -> tuple[Loaded, GroupSteps]:
    """This process is rank 0. What goes wrong ends all of them."""
    with ExitStack() as on_failure:
        on_failure.callback(ranks.close)
        ranks.start(config, checkpoint.path)

        def meet() -> None:
            ranks.receive_all(rank_messages.Filled)
            ranks.send(rank_messages.Pack())

        place = Place(0, Layout(config.tp, config.pp))
        try:
            part = load_part(config, checkpoint, place, ranks.meeting, meet, named)
        except CollectiveFailed as error:
            raise ranks.explain(error) from error
        if config.graphs and config.device == "cuda":
            log.info("graphs_off: a group launches its steps one by one, for its collectives are not captured")
        ranks.receive_all(rank_messages.Loaded)
        ranks.serve()
        on_failure.pop_all()
    return part.loaded, GroupSteps(RankSteps(config, part.loaded, part.group), part.group, ranks)


def _domains(config: WorkerConfig) -> tuple[str, ...]:
    """Fast-link domains of the group's devices; those that the configuration names, if it names any."""
    if config.domains or config.device != "cuda":
        return config.domains
    return read_domains(config.tp * config.pp)


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


def _max_context(config: WorkerConfig, max_position: int) -> int:
    if config.max_context is not None and config.max_context > max_position:
        raise ConfigError("max_context", f"is {config.max_context}; the model knows {max_position} positions")
    return config.max_context or max_position
