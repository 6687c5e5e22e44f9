"""What weights and KV are kept as: settings, checkpoint and card agree, or the start is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from headrace_worker.config import ConfigError, WorkerConfig
from headrace_worker.execution.precision import Precision, check_groups, choose_precision
from headrace_worker.models.model_config import ModelConfig
from headrace_worker.models.stored_quantization import StoredQuantization

AWQ = StoredQuantization("int4", "awq", 128)
FP8 = StoredQuantization("fp8", "fp8")


def choose(stored: StoredQuantization | None = None, capability: int = 90, **settings: Any) -> Precision:
    config = WorkerConfig(service_token_file=Path("t"), state_dir=Path("s"), source="m", **settings)
    return choose_precision(config, stored, capability)


def test_auto_is_what_the_checkpoint_has() -> None:
    assert choose().quantization is None
    assert choose(AWQ) == Precision("int4", AWQ.grid, False)
    assert choose(FP8).grid is not None


def test_codes_may_be_made_at_load_or_undone() -> None:
    assert choose(quantization="int4") == Precision("int4", None, False)
    assert choose(AWQ, quantization="none") == Precision(None, None, False)


def test_the_name_tells_weights_and_kv_apart() -> None:
    assert choose(FP8, kv_precision="fp8").name == "fp8, fp8 kv"
    assert choose().name == "none"


@pytest.mark.parametrize(
    ("stored", "capability", "settings", "message"),
    [
        (AWQ, 90, {"quantization": "fp8"}, r"quantization: is fp8; the checkpoint's weights are int4 \(awq\)"),
        (
            None,
            80,
            {"quantization": "fp8"},
            r"fp8 \(E4M3\) needs compute capability 8\.9, the card has 8\.0",
        ),
        (FP8, 80, {}, r"quantization: fp8 \(E4M3\) needs compute capability 8\.9"),
        (None, 80, {"kv_precision": "fp8"}, r"kv_precision: fp8 \(E4M3\) needs compute capability 8\.9"),
        (None, 0, {"quantization": "int4", "deterministic": True}, "quantization: is int4, and batch-invariant"),
    ],
)
def test_what_cannot_be_is_refused(
    stored: StoredQuantization | None, capability: int, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(stored, capability, **settings)


def shape(hidden_size: int, intermediate_size: int) -> ModelConfig:
    return ModelConfig("llama", 64, hidden_size, intermediate_size, 2, 8, 4, 32, 256, 1e-5, 1e4, False)


@pytest.mark.parametrize(
    ("precision", "capability", "message"),
    [
        (choose(AWQ), 90, "tp: 4 ranks have 64 attention inputs each, no multiple of groups of 128"),
        (choose(FP8), 90, "quantization: fp8 products are of multiples of 16; a rank has 72 feed-forward inputs"),
    ],
)
def test_what_a_rank_has_must_fit_the_codes(precision: Precision, capability: int, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_groups(precision, shape(256, 288), 4, capability)
    assert str(refused.value) == message


def test_twins_multiply_fp8_of_any_size() -> None:
    check_groups(choose(FP8), shape(256, 288), 4, 0)
