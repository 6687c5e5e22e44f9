"""A rank reads what it holds and no more, and still refuses a checkpoint that is not exactly the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file, save_file
from torch import Tensor

from headrace_worker.layers.setting import Shard
from headrace_worker.layers.stage import Stage
from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.checkpoint import ModelFiles, open_files
from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from headrace_worker.models.weight_source import TensorInfo, WeightSource
from tests.unit.worker.parallel.group_model import write_model


class Spy(WeightSource):
    """Remembers what was read."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.read_regions: dict[str, Region | None] = {}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._source.tensors()

    def read(self, name: str, region: Region | None = None) -> Tensor:
        self.read_regions[name] = region
        return self._source.read(name, region)

    def identity(self) -> Mapping[str, str]:
        return self._source.identity()


def read_by(files: ModelFiles, rank: int, size: int, stage: Stage) -> dict[str, Region | None]:
    spy = Spy(files.weights)
    options = BuildOptions(shard=Shard(rank, size), stage=stage)
    load_model(dataclasses.replace(files, weights=spy), options)
    return spy.read_regions


def test_a_rank_reads_its_rows_and_columns_of_its_layers(tmp_path: Path) -> None:
    files = open_files(write_model(tmp_path / "m"))
    regions = read_by(files, 1, 2, Stage(1, 3))
    layers = {int(name.split(".")[2]) for name in regions}
    assert layers == {1, 2} and len(regions) == 2 * 9
    at = "model.layers.1."
    assert {name.removeprefix(at): region for name, region in regions.items() if name.startswith(at)} == {
        "input_layernorm.weight": None,
        "post_attention_layernorm.weight": None,
        "self_attn.q_proj.weight": Region(0, 32, 32),
        "self_attn.k_proj.weight": Region(0, 16, 16),
        "self_attn.v_proj.weight": Region(0, 16, 16),
        "self_attn.o_proj.weight": Region(1, 32, 32),
        "mlp.gate_proj.weight": Region(0, 48, 48),
        "mlp.up_proj.weight": Region(0, 48, 48),
        "mlp.down_proj.weight": Region(1, 48, 48),
    }


def test_the_ends_of_the_model_belong_to_the_ends_of_the_pipeline(tmp_path: Path) -> None:
    """64 ids on 3 ranks: 22, 22 and 20."""
    sizes: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48}
    files = open_files(write_model(tmp_path / "m", **sizes))
    first, last = read_by(files, 2, 3, Stage(0, 2)), read_by(files, 0, 3, Stage(2))
    outside = {name: region for name, region in {**first, **last}.items() if "layers" not in name}
    assert outside == {
        "model.embed_tokens.weight": Region(0, 44, 20),
        "model.norm.weight": None,
        "lm_head.weight": Region(0, 0, 22),
    }


@pytest.mark.parametrize("stage", [Stage(0, 2), Stage(2)])
def test_every_rank_refuses_a_tensor_that_has_no_place_in_the_whole_model(tmp_path: Path, stage: Stage) -> None:
    directory = write_model(tmp_path / "m")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.4.input_layernorm.weight"] = numpy.ones(64, numpy.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.4\.input_layernorm\.weight has no place in the model"):
        read_by(open_files(directory), 0, 1, stage)
