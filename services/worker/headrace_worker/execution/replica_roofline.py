"""The roofline of this replica: its model on its cards. None where the card is not known.

Knows no step; what is measured against it is `perf.live`'s.
"""

from __future__ import annotations

import torch

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.perf.cards import CARDS, CPU, Card, card_named, cpu_card
from headrace_worker.perf.cpu_probe import measure_cpu
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.precision import weight_precision
from headrace_worker.perf.step import Roofline

# Part of the driver's name of a device -> ours.
_DEVICES = {
    "H200": "h200-141gib",
    "H100 80GB": "h100-80gib",
    "A100-SXM4-80GB": "a100-80gib",
    "B200": "b200-180gib",
    "L40S": "l40s-48gib",
    "RTX 4090": "rtx4090-24gib",
}
_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def roofline_of(config: WorkerConfig, model: ModelConfig, name: str) -> Roofline | None:
    """Raises ConfigError for a card that nobody knows."""
    card = _card(config)
    if card is None:
        return None
    precision = weight_precision(_PRECISIONS[config.precision])
    return Roofline(shape_of(model, name), precision, precision, card, Layout(config.tp, config.pp))


def shape_of(model: ModelConfig, name: str) -> ModelShape:
    windows = [window for window in model.sliding_windows if window is not None]
    return ModelShape(
        name=name,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        max_context=model.max_position,
        tied_embeddings=model.tie_embeddings,
        attention_bias=model.qkv_bias,
        sliding_window=windows[0] if windows else None,
        num_window_layers=len(windows),
    )


def card_of_device(device: str) -> Card | None:
    """By the name that the driver gives it."""
    return next((CARDS[ours] for part, ours in _DEVICES.items() if part in device), None)


def _card(config: WorkerConfig) -> Card | None:
    if config.card == CPU:
        return cpu_card(measure_cpu())
    if config.card:
        try:
            return card_named(config.card, "card")
        except PerfError as error:
            raise ConfigError(error.field, error.reason) from error
    return card_of_device(torch.cuda.get_device_name()) if config.device == "cuda" else None
