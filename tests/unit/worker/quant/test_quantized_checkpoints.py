"""Quantized checkpoints: the weights that they stand for, their codes kept exactly, what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_worker.kernels.int4_weight import codes_on_grid
from headrace_worker.kernels.kv_write import to_e4m3
from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.checkpoint import open_files
from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from headrace_worker.models.stored_quantization import read_stored_quantization
from tests.unit.worker.models.drive import Driver
from tests.unit.worker.quant.checkpoints import GROUP, write_quantized

METHODS = ["awq", "gptq", "gptq_v2", "fp8", "compressed"]
PROMPT = [1, 8, 15, 22, 29, 36, 43]


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_is_read_as_what_it_stands_for(tmp_path: Path, method: str) -> None:
    meant = write_quantized(tmp_path / method, method)
    files = open_files(tmp_path / method)
    assert files.stored is not None and files.stored.kind == ("fp8" if method in ("fp8", "compressed") else "int4")
    for name, weight in meant.items():
        torch.testing.assert_close(files.weights.read(name), weight)
    part = Region(1, GROUP, 2 * GROUP)
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(files.weights.read(name, part), part.of(meant[name]))


@pytest.mark.parametrize("method", METHODS)
def test_codes_survive_being_staged_in_bfloat16(tmp_path: Path, method: str) -> None:
    """Linear layers hold the weight in the model's type until they are packed: the file's own codes come out."""
    write_quantized(tmp_path / method, method)
    weights = open_files(tmp_path / method).weights
    name = "model.layers.0.self_attn.q_proj.weight"
    exact, scales = weights.read(name), weights.read(f"{name}_scale")
    staged = exact.to(torch.bfloat16)
    if method in ("fp8", "compressed"):
        assert torch.equal(to_e4m3(staged, scales).float(), to_e4m3(exact, scales).float())
    else:
        zeros = weights.read(f"{name}_zero")
        codes = codes_on_grid(staged, scales, zeros).float().view(*scales.shape, -1)
        torch.testing.assert_close(((codes - zeros[..., None]) * scales[..., None]).flatten(1), exact)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_over_codes_equals_one_over_the_weights_they_stand_for(tmp_path: Path, method: str) -> None:
    """Of 4 bits to rounding of the product; of 8 bits activations are rounded, too."""
    write_quantized(tmp_path / method, method)
    files = open_files(tmp_path / method)
    assert files.stored is not None
    kept = load_model(files, BuildOptions(quantization=files.stored.kind, grid=files.stored.grid))
    plain = load_model(files, BuildOptions())
    got, wanted = (Driver(model, False).step({0: PROMPT})[0] for model in (kept, plain))
    loose = 0.25 if files.stored.kind == "fp8" else 1e-4
    assert float((got - wanted).abs().max() / wanted.abs().max()) < loose
    if loose == 0.25:
        assert not torch.equal(got, wanted), "activations were not rounded"


def test_a_permuted_order_is_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_quantized(tmp_path / "m", "gptq")
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.self_attn.q_proj.g_idx"
    tensors[name] = torch.flip(tensors[name], (0,))
    save_file(tensors, path)
    with pytest.raises(UnsupportedModelError, match="desc_act"):
        load_model(open_files(tmp_path / "m"), BuildOptions())


def test_a_promise_that_the_file_does_not_keep_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_quantized(tmp_path / "m", "awq")
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.scales"]
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"has no model\.layers\.0\.mlp\.up_proj\.scales"):
        open_files(tmp_path / "m")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"bits": 4}, "quant_method None"),
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes'"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "bits 8; 4 is known"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version 'gemv' of awq"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "group_size -1"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, r"weight_block_size \[128, 128\]"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "format 'pack-quantized'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, values: dict[str, Any], named: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": values}))
    with pytest.raises(UnsupportedModelError, match=named):
        read_stored_quantization(tmp_path)
