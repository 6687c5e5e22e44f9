"""Models through our kernels, under the interpreter, beside the torch twins: the same tokens in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from headrace_worker.attention.triton_paged import TritonPagedAttention
from headrace_worker.config import ConfigError
from headrace_worker.execution.torch_runner import TorchRunner
from headrace_worker.models.checkpoint import open_files
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.execution.engine_bench import EngineBench, load
from tests.unit.worker.models.drive import Driver
from tests.unit.worker.models.tiny import VOCAB_SIZE, write_tiny


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def prompt(length: int, salt: int) -> list[int]:
    return [(7 * index + 3 + salt * 11) % VOCAB_SIZE for index in range(length)]


def generate(runner: TorchRunner, **sampling: Any) -> list[list[int]]:
    """A prompt over a page's end, a short one and one that is chunked, side by side."""
    bench = EngineBench(runner, max_chunk_tokens=16)
    handles = [bench.submit(prompt(length, salt), 4, **sampling) for salt, length in enumerate((17, 3, 24))]
    bench.run()
    return [bench.ids(handle) for handle in handles]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_kernels_give_the_same_tokens_as_their_twins(tmp_path: Path, family: str) -> None:
    """Over a page's end; Qwen3 norms its heads."""
    files = open_files(write_tiny(tmp_path / family, family))
    plain = Driver(load_model(files, BuildOptions()), deterministic=False)
    kernels = Driver(load_model(files, BuildOptions(row_kernels=True)), deterministic=False)
    kernels.backend = TritonPagedAttention()
    assert kernels.greedy(prompt(14, 1), 4) == plain.greedy(prompt(14, 1), 4)


def test_fp8_pages_give_nearly_the_same_logits(tmp_path: Path) -> None:
    """Half the bytes of 16 bits; greedy tokens of a random model may differ where two are nearly as likely."""
    source = write_tiny(tmp_path / "llama", "llama")
    plain, small = load(source, tmp_path, threads=1), load(source, tmp_path, threads=1, kv_precision="fp8")
    assert small.describe().kv_bytes_per_token * 4 == plain.describe().kv_bytes_per_token
    wanted, got = generate(plain), generate(small)
    same = sum(a == b for one, other in zip(wanted, got, strict=True) for a, b in zip(one, other, strict=True))
    assert same >= 8, (wanted, got)


def test_what_is_named_and_cannot_serve_stops_the_start(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "llama", "llama")
    with pytest.raises(ConfigError, match="attention: not triton: its results depend on the batch"):
        load(source, tmp_path, deterministic=True, attention="triton")
    with pytest.raises(ConfigError, match=r"attention: not flash_attn: .* can be imported"):
        load(source, tmp_path, attention="flash_attn")
