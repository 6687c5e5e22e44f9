"""The roofline of a replica: its model's dimensions on the card that the device names, or that its operator names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.replica_roofline import card_of_device, roofline_of, shape_of
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.perf.step import StepLoad

MODEL = ModelConfig(
    family="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    tie_embeddings=True,
)


def config(**more: Any) -> WorkerConfig:
    return WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), source="x", **more)


def test_the_models_dimensions_give_its_parameters() -> None:
    assert shape_of(MODEL, "smollm2").num_params == pytest.approx(134.5e6, rel=0.01)


@pytest.mark.parametrize(
    "device, card",
    [
        ("NVIDIA H200", "h200-141gib"),
        ("NVIDIA H100 80GB HBM3", "h100-80gib"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gib"),
        ("NVIDIA GeForce RTX 4090", "rtx4090-24gib"),
        ("Tesla T4", None),
    ],
)
def test_a_device_names_its_card(device: str, card: str | None) -> None:
    found = card_of_device(device)
    assert (found.name if found is not None else None) == card


def test_an_operator_may_name_it_and_is_told_what_there_is() -> None:
    made = roofline_of(config(card="h200-141gib", precision="bfloat16"), MODEL, "m")
    assert made is not None and made.weights.num_bytes == 2
    assert 0 < made.step_time_s(StepLoad((), 8, 8 * 512)) < 0.01
    with pytest.raises(ConfigError, match=r"card: 'h300' is not one of .*h200-141gib"):
        roofline_of(config(card="h300"), MODEL, "m")


def test_on_a_cpu_there_is_none_unless_it_is_asked_for() -> None:
    assert roofline_of(config(), MODEL, "m") is None
