"""Loading refuses whatever is not exactly the model: B126, B128, B129 and their kin. Errors name the file."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.numpy import save_file

from headrace_worker.models.checkpoint import open_checkpoint
from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.drive import Driver
from tests.unit.worker.models.tiny import TINY, TOKENIZER, tiny_tensors, write_tiny

Tensors = dict[str, numpy.ndarray[Any, numpy.dtype[numpy.float32]]]


def write_shards(directory: Path, shards: list[Tensors], index: dict[str, int] | None, family: str = "llama") -> Path:
    """Shard files named as Hugging Face names them; `index` maps tensor -> shard number from 1."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(TINY[family]))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        save_file(tensors, directory / name)
    if index is not None:
        weight_map = {tensor: names[number - 1] for tensor, number in index.items()}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def split(tensors: Tensors, num_shards: int = 3) -> tuple[list[Tensors], dict[str, int]]:
    shards: list[Tensors] = [{} for _ in range(num_shards)]
    index = {}
    for place, (name, tensor) in enumerate(tensors.items()):
        shards[place % num_shards][name] = tensor
        index[name] = place % num_shards + 1
    return shards, index


def load(directory: Path) -> LlamaForCausalLM:
    return load_model(open_checkpoint(str(directory), directory), BuildOptions())


def assert_refused(directory: Path, file: str, detail: str) -> None:
    with pytest.raises(CheckpointError, match=detail) as caught:
        load(directory)
    assert str(caught.value).startswith(file)


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    return Driver(model, deterministic=False, num_sequences=1).step({0: [3, 1, 4, 1, 5]})[0]


def test_shards_with_an_index_are_the_same_model(tmp_path: Path) -> None:
    whole = load(write_tiny(tmp_path / "whole", "llama"))
    sharded = load(write_shards(tmp_path / "sharded", *split(tiny_tensors(TINY["llama"]))))
    assert torch.equal(logits(sharded), logits(whole))


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, with_index: bool) -> None:
    """B126: shard 2 of 3 is gone."""
    shards, index = split(tiny_tensors(TINY["llama"]))
    directory = write_shards(tmp_path, shards, index if with_index else None)
    (directory / "model-00002-of-00003.safetensors").unlink()
    assert_refused(directory, "model-00002-of-00003.safetensors", "is missing")


def test_the_index_decides_where_a_tensor_comes_from(tmp_path: Path) -> None:
    """B128: norm = 1.0 in shard 1 (indexed), a stale 2.0 in shard 2 -> 1.0 is loaded."""
    shards, index = split(tiny_tensors(TINY["llama"]), 2)
    name = "model.norm.weight"
    for shard in shards:
        shard.pop(name, None)
    shards[0][name] = numpy.full(48, 1.0, numpy.float32)
    shards[1][name] = numpy.full(48, 2.0, numpy.float32)
    model = load(write_shards(tmp_path, shards, {**index, name: 1}))
    assert torch.equal(model.model.norm.weight, torch.ones(48))


def test_a_name_twice_without_an_index_is_refused(tmp_path: Path) -> None:
    """B128, second half."""
    shards, _ = split(tiny_tensors(TINY["llama"]), 2)
    shards[1]["model.norm.weight"] = shards[0]["model.norm.weight"] = numpy.ones(48, numpy.float32)
    assert_refused(write_shards(tmp_path, shards, None), "model-00002-of-00002.safetensors", "model.norm.weight again")


def test_an_index_that_names_an_absent_tensor_is_refused(tmp_path: Path) -> None:
    shards, index = split(tiny_tensors(TINY["llama"]))
    del shards[0][next(iter(shards[0]))]
    assert_refused(
        write_shards(tmp_path, shards, index), "model-00001-of-00003.safetensors", "lacks model.embed_tokens"
    )


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ("no json", "is not JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "not the name of a .safetensors file"),
        ('{"weight_map": {"a": "pytorch_model.bin"}}', "not the name of a .safetensors file"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, content: str, detail: str) -> None:
    directory = write_tiny(tmp_path, "llama")
    (directory / "model.safetensors.index.json").write_text(content)
    assert_refused(directory, "model.safetensors.index.json", detail)


def write_one(directory: Path, tensors: Tensors, family: str = "llama", **changes: Any) -> Path:
    write_tiny(directory, family)
    (directory / "config.json").write_text(json.dumps({**TINY[family], **changes}))
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    """B129: tie = true without lm_head -> logits = h . E^T."""
    tensors = tiny_tensors(TINY["llama"])
    embedding = torch.from_numpy(tensors["model.embed_tokens.weight"])
    del tensors["lm_head.weight"]
    model = load(write_one(tmp_path, tensors, tie_word_embeddings=True))
    hidden = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.compute_logits(hidden), hidden @ embedding.t())


def test_an_absent_head_that_is_not_tied_is_refused(tmp_path: Path) -> None:
    """B129: tie = false without lm_head -> load error."""
    tensors = tiny_tensors(TINY["llama"])
    del tensors["lm_head.weight"]
    assert_refused(write_one(tmp_path, tensors), "lm_head.weight", "is absent, and the configuration does not tie it")


def test_a_tied_model_may_carry_a_copy_of_its_head_but_no_other(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY["llama"])
    directory = write_one(tmp_path / "other", tensors, tie_word_embeddings=True)
    assert_refused(directory, "model.safetensors", "lm_head.weight differs from the embedding")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    load(write_one(tmp_path / "copy", tensors, tie_word_embeddings=True))


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY["llama"])
    del tensors["model.layers.1.mlp.up_proj.weight"]
    assert_refused(write_one(tmp_path, tensors), "model.layers.1.mlp.up_proj.weight", "is in no file")


def test_an_unexpected_tensor_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY["llama"])
    tensors["model.layers.3.input_layernorm.weight"] = tensors["model.norm.weight"]
    assert_refused(write_one(tmp_path, tensors), "model.safetensors", "layers.3.input_layernorm.weight has no place")


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY["llama"])
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    assert_refused(write_one(tmp_path, tensors), "model.safetensors", r"model.norm.weight has shape \[47\]")


def test_recomputed_buffers_of_old_exporters_are_passed_over(tmp_path: Path) -> None:
    tensors = tiny_tensors(TINY["llama"])
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = numpy.ones(4, numpy.float32)
    load(write_one(tmp_path, tensors))


def test_progress_rises_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    checkpoint = open_checkpoint(str(write_tiny(tmp_path, "qwen3")), tmp_path)
    load_model(checkpoint, BuildOptions(), lambda phase, share: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 10
