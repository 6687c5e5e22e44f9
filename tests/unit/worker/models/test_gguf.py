"""GGUF files become the same model as their safetensors origin; each quirk of the format is met (B133)."""

from pathlib import Path

import numpy
import pytest
import torch
from gguf import GGMLQuantizationType

from headrace_worker.layers.rotary import Llama3Stretch, inverse_frequencies
from headrace_worker.layers.weight_slot import Region
from headrace_worker.models.checkpoint import open_checkpoint
from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.gguf_file import GgufFile
from headrace_worker.models.gguf_model import GgufWeights, read_gguf_config
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.drive import Driver
from tests.unit.worker.models.gguf_fixture import GgufFixture
from tests.unit.worker.models.tiny import TINY, tiny_tensors, write_tiny

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def load(path: Path) -> LlamaForCausalLM:
    return load_model(open_checkpoint(str(path), path.parent), BuildOptions())


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    return Driver(model, deterministic=False, num_sequences=1).step({0: IDS})[0]


@pytest.mark.parametrize("family", ["llama", "llama-biased", "qwen3"])
def test_a_gguf_file_is_its_origin(tmp_path: Path, family: str) -> None:
    origin = load(write_tiny(tmp_path / "origin", family))
    converted = load(GgufFixture(family).write(tmp_path / "a.gguf"))
    torch.testing.assert_close(logits(converted), logits(origin), rtol=1e-5, atol=1e-5)


def test_qwen2_rows_are_not_reordered(tmp_path: Path) -> None:
    """Its converter leaves query and key rows alone. (Full attention: GGUF says nothing of Qwen2's windows.)"""
    fixture = GgufFixture("qwen2")
    converted = open_checkpoint(str(fixture.write(tmp_path / "a.gguf")), tmp_path)
    for part in ("q_proj.weight", "q_proj.bias", "k_proj.weight"):
        name = f"model.layers.0.self_attn.{part}"
        assert torch.equal(converted.weights.read(name), torch.from_numpy(fixture.tensors[name]))
    assert converted.config.qkv_bias
    assert not converted.config.output_bias


def test_an_extra_rope_freqs_tensor_loads(tmp_path: Path) -> None:
    """B133 (a): all ones change nothing."""
    fixture = GgufFixture()
    fixture.extra["rope_freqs.weight"] = numpy.ones(4, numpy.float32)
    with_extra = load(fixture.write(tmp_path / "a.gguf"))
    assert torch.equal(logits(with_extra), logits(load(GgufFixture().write(tmp_path / "b.gguf"))))


def test_rope_freqs_are_what_llama3_stretching_divides_by(tmp_path: Path) -> None:
    """B131 through GGUF: the converter stores the stretch as divisors, and the result is the llama3 model."""
    stretch = Llama3Stretch(8.0, 1.0, 4.0, 16)
    divisors = inverse_frequencies(8, 10000.0) / inverse_frequencies(8, 10000.0, stretch)
    fixture = GgufFixture("llama3")
    fixture.extra["rope_freqs.weight"] = divisors.numpy()
    converted, origin = load(fixture.write(tmp_path / "a.gguf")), load(write_tiny(tmp_path / "origin", "llama3"))
    torch.testing.assert_close(logits(converted), logits(origin), rtol=1e-4, atol=1e-4)


def test_frequencies_in_very_old_files_are_not_taken_for_divisors(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.extra["rope_freqs.weight"] = inverse_frequencies(8, 10000.0).numpy()
    assert read_gguf_config(GgufFile(fixture.write(tmp_path / "a.gguf"))).rope_divisors == ()


def test_no_output_weight_means_tied(tmp_path: Path) -> None:
    """B133 (b)."""
    fixture = GgufFixture()
    del fixture.tensors["lm_head.weight"]
    model = load(fixture.write(tmp_path / "a.gguf"))
    hidden = torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    embedding = torch.from_numpy(fixture.tensors["model.embed_tokens.weight"])
    torch.testing.assert_close(model.compute_logits(hidden), hidden @ embedding.t())


def test_a_region_is_cut_from_what_the_whole_would_be(tmp_path: Path) -> None:
    """Rows and columns, of reordered heads too; rows alone are dequantized."""
    file = GgufFile(GgufFixture("llama-biased").write(tmp_path / "a.gguf"))
    weights = GgufWeights(file, read_gguf_config(file))
    for name, region in {
        "model.layers.0.self_attn.q_proj.weight": Region(0, 16, 24),
        "model.layers.0.self_attn.k_proj.bias": Region(0, 8, 8),
        "model.layers.1.self_attn.o_proj.weight": Region(1, 16, 16),
        "model.layers.1.mlp.down_proj.weight": Region(1, 40, 40),
        "model.embed_tokens.weight": Region(0, 48, 16),
        "lm_head.weight": Region(0, 0, 32),
    }.items():
        assert torch.equal(weights.read(name, region), region.of(weights.read(name)))


def test_query_rows_come_back_in_the_order_of_the_origin(tmp_path: Path) -> None:
    """B133 (c): cosine with the reference > 0.999; as stored it is about nothing."""
    fixture = GgufFixture()
    file = GgufFile(fixture.write(tmp_path / "a.gguf"))
    rows = torch.randn(16, 48, generator=torch.Generator().manual_seed(1))
    expected = rows @ torch.from_numpy(tiny_tensors(TINY["llama"])["model.layers.0.self_attn.q_proj.weight"]).t()
    ours = rows @ GgufWeights(file, read_gguf_config(file)).read("model.layers.0.self_attn.q_proj.weight").t()
    stored = rows @ file.tensors["blk.0.attn_q.weight"].dequantize().t()
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(ours.flatten(), expected.flatten(), dim=0) > 0.999
    assert cosine(stored.flatten(), expected.flatten(), dim=0) < 0.5


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16, GGMLQuantizationType.Q4_1])
def test_block_types_are_expanded(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """A row of 96 is three blocks; the values are the stored ones within the type's step."""
    fixture = GgufFixture()
    name = "blk.9.ffn_up.weight"
    fixture.tensors = {name: numpy.linspace(-1, 1, 4 * 96, dtype=numpy.float32).reshape(4, 96)}
    fixture.quantized = {name: kind}
    tensor = GgufFile(fixture.write(tmp_path / "a.gguf")).tensors[name].dequantize()
    torch.testing.assert_close(tensor, torch.from_numpy(fixture.tensors[name]), rtol=0, atol=0.02)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.9, 0.999])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, share: float) -> None:
    path = GgufFixture().write(tmp_path / "a.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"^a\.gguf: "):
        open_checkpoint(str(path), tmp_path)


def test_a_missing_tensor_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    del fixture.tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight: is in no file"):
        load(fixture.write(tmp_path / "a.gguf"))


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.extra["blk.0.ssm_a.weight"] = numpy.ones(4, numpy.float32)
    with pytest.raises(CheckpointError, match=r"^a\.gguf: blk\.0\.ssm_a\.weight has no place"):
        load(fixture.write(tmp_path / "a.gguf"))


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.config["model_type"] = "gemma3"
    with pytest.raises(UnsupportedModelError, match="architecture gemma3 is not one of llama, qwen2, qwen3"):
        open_checkpoint(str(fixture.write(tmp_path / "a.gguf")), tmp_path)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.config["num_key_value_heads"] = 4
    with pytest.raises(CheckpointError, match="6 heads, 4 KV heads"):
        read_gguf_config(GgufFile(_write_without_reordering(fixture, tmp_path / "a.gguf")))


def _write_without_reordering(fixture: GgufFixture, path: Path) -> Path:
    fixture.tensors = {"model.embed_tokens.weight": fixture.tensors["model.embed_tokens.weight"]}
    return fixture.write(path)
