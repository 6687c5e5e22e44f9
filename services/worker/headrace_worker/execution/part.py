"""A model in memory: the whole of it, or one rank's part beside its group. Knows neither processes nor plans."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headrace_worker.attention.base import AttentionBackend
from headrace_worker.attention.needs import AttentionNeeds
from headrace_worker.attention.registry import AttentionError, choose_attention
from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.loaded import Loaded
from headrace_worker.execution.precision import check_groups, choose_precision
from headrace_worker.execution.replica_roofline import shape_of
from headrace_worker.kernels.capability import capability
from headrace_worker.layers.setting import Shard
from headrace_worker.layers.stage import Stage
from headrace_worker.models.checkpoint import ModelFiles
from headrace_worker.models.loader import alone, load_model
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.progress import Progress, silent
from headrace_worker.models.registry import BuildOptions
from headrace_worker.parallel.collectives import Collectives, Meeting
from headrace_worker.parallel.place import Place
from headrace_worker.perf.errors import LayoutError
from headrace_worker.perf.layout import Layout

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Part:
    """What a rank computes with, and with whom."""

    loaded: Loaded
    group: Collectives


def check_layout(config: WorkerConfig, model: ModelConfig, name: str) -> Layout:
    """The group's layout; ConfigError, with the numbers, if the model cannot be split so."""
    layout = Layout(config.tp, config.pp)
    try:
        layout.check(shape_of(model, name))
    except LayoutError as error:
        raise ConfigError(error.field, error.reason) from error
    if config.device == "cuda" and layout.num_devices > torch.cuda.device_count():
        detail = f"{config.tp} x {config.pp} ranks need as many devices, and torch sees {torch.cuda.device_count()}"
        raise ConfigError("tp" if config.tp > 1 else "pp", detail)
    return layout


def load_alone(config: WorkerConfig, files: ModelFiles, progress: Progress) -> Loaded:
    """The whole model in one process. Raises ModelError."""
    options = BuildOptions(config.device, DTYPES[config.precision], config.deterministic)
    return _load(config, files, options, progress, alone)


def load_part(
    config: WorkerConfig,
    files: ModelFiles,
    place: Place,
    meeting: Meeting,
    meet: Callable[[], None],
    progress: Progress = silent,
) -> Part:
    """Meets the other ranks, then loads what this one holds. `meet` returns when all of them have read their weights:
    disks may be slow, and collectives have a timeout.

    Raises ModelError, or CollectiveFailed if a rank stays away.
    """
    device = torch.device(f"cuda:{place.rank}" if config.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = Collectives(place, device, meeting, ordered=config.deterministic)
    shard = Shard(place.tensor_rank, place.layout.tensor, group.all_reduce, group.gather, group.maximum)
    if place.layout.tensor == 1:
        shard = Shard()
    first, end = place.layout.stage_range(files.config.num_layers, place.stage)
    stage = Stage(first, None if place.is_last_stage else end)
    options = BuildOptions(str(device), DTYPES[config.precision], config.deterministic, shard=shard, stage=stage)
    return Part(_load(config, files, options, progress, meet), group)


def _load(
    config: WorkerConfig, files: ModelFiles, options: BuildOptions, progress: Progress, meet: Callable[[], None]
) -> Loaded:
    torch.set_num_threads(config.threads or max(1, num_cores() // (config.tp * config.pp)))
    device = torch.device(options.device)
    precision = choose_precision(config, files.stored, capability(device))
    check_groups(precision, files.config, config.tp, capability(device))
    kv_dtype = torch.float8_e4m3fn if precision.fp8_kv else options.dtype
    attention = _attention(config, files.config, device, kv_dtype)
    options = dataclasses.replace(
        options,
        row_kernels=attention.row_kernels,
        quantization=precision.quantization,
        grid=precision.grid,
    )
    model = load_model(files, options, progress, meet)
    ends = frozenset(files.text.end_token_ids)
    return Loaded(model, attention, options.dtype, kv_dtype, device, ends, precision.name)


def _attention(
    config: WorkerConfig, model: ModelConfig, device: torch.device, kv_dtype: torch.dtype
) -> AttentionBackend:
    """What was named, or the best that can serve; ConfigError if what was named cannot."""
    needs = AttentionNeeds(
        device=device.type,
        capability=capability(device),
        dtype=config.precision,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        page_tokens=config.page_tokens,
        head_dim=model.head_dim,
        windowed=any(model.sliding_windows),
        deterministic=config.deterministic,
    )
    try:
        chosen = choose_attention(config.attention, needs)
    except AttentionError as error:
        raise ConfigError("attention", str(error)) from error
    log.info("attention: %s (%s)", chosen.backend.name, chosen.reason)
    return chosen.backend


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
