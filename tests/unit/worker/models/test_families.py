"""Every family against Hugging Face transformers on a tiny checkpoint: whole, chunked, cached, batched, invariant."""

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from headrace_worker.models.checkpoint import open_checkpoint
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.drive import PAGE_SIZE, Driver
from tests.unit.worker.models.tiny import TINY, VOCAB_SIZE, write_tiny

GOLDENS: dict[str, Any] = json.loads((Path(__file__).parent / "goldens" / "families.json").read_text())
families = pytest.mark.parametrize("family", TINY)
modes = pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "invariant"])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def load(tmp_path: Path, family: str, deterministic: bool) -> LlamaForCausalLM:
    checkpoint = open_checkpoint(str(write_tiny(tmp_path, family)), tmp_path)
    return load_model(checkpoint, BuildOptions(deterministic=deterministic))


def golden_logits(family: str) -> Tensor:
    raw = base64.b64decode(GOLDENS[family]["logits_float32_base64"])
    return torch.from_numpy(numpy.frombuffer(raw, numpy.float32).reshape(-1, VOCAB_SIZE).copy())


def assert_same_logits(actual: Tensor, expected: Tensor) -> None:
    """Within 1e-4 of the largest logit of each row."""
    error = (actual - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert error.max() < 1e-4, f"relative error {error.max():.2e}"


@families
@modes
def test_whole_prefill_equals_transformers(tmp_path: Path, family: str, deterministic: bool) -> None:
    driver = Driver(load(tmp_path, family, deterministic), deterministic)
    ids = GOLDENS[family]["ids"]
    assert_same_logits(driver.step({0: ids})[0], golden_logits(family))


@families
@modes
def test_chunks_and_single_tokens_equal_transformers(tmp_path: Path, family: str, deterministic: bool) -> None:
    driver = Driver(load(tmp_path, family, deterministic), deterministic)
    ids = GOLDENS[family]["ids"]
    edges = [0, 5, 6, 7, 8, 29, 40]
    pieces = [driver.step({0: ids[start:end]})[0] for start, end in itertools.pairwise(edges)]
    assert_same_logits(torch.cat(pieces), golden_logits(family))


@families
@modes
def test_greedy_tokens_equal_transformers(tmp_path: Path, family: str, deterministic: bool) -> None:
    driver = Driver(load(tmp_path, family, deterministic), deterministic)
    golden = GOLDENS[family]
    assert driver.greedy(golden["ids"][:12], 16) == golden["greedy"]


@families
@modes
@pytest.mark.parametrize("wanted", [[], [19], [3, 19, 19]])
def test_only_the_rows_that_are_wanted_are_computed_to_the_end(
    tmp_path: Path, family: str, deterministic: bool, wanted: list[int]
) -> None:
    """And the next step finds the keys and values of all rows."""
    driver = Driver(load(tmp_path, family, deterministic), deterministic)
    ids, expected = GOLDENS[family]["ids"], golden_logits(family)
    (logits,) = driver.step({0: ids[:20]}, wanted=wanted).values()
    assert logits.shape == (len(wanted), VOCAB_SIZE)
    if wanted:
        assert_same_logits(logits, expected[wanted])
    assert_same_logits(driver.step({0: ids[20:]})[0], expected[20:])


@families
def test_a_mixed_batch_equals_transformers(tmp_path: Path, family: str) -> None:
    """Decodes, a chunk and a whole prefill in one step."""
    driver = Driver(load(tmp_path, family, False), False)
    ids, logits = GOLDENS[family]["ids"], golden_logits(family)
    driver.step({0: ids[:20], 1: ids[:33]})
    outs = driver.step({1: ids[33:34], 2: ids, 0: ids[20:31], 3: ids[:1]})
    for number, (start, end) in {1: (33, 34), 2: (0, 40), 0: (20, 31), 3: (0, 1)}.items():
        assert_same_logits(outs[number], logits[start:end])


@families
def test_invariant_logits_are_the_same_bits_alone_batched_and_chunked(tmp_path: Path, family: str) -> None:
    model = load(tmp_path, family, True)
    ids = GOLDENS[family]["ids"]
    alone = Driver(model, True).step({0: ids})[0]
    driver = Driver(model, True)
    driver.step({1: ids[3:20], 2: ids[:9]})
    first = driver.step({3: ids[::-1], 0: ids[:7], 1: ids[20:21]})[0]
    middle = driver.step({0: ids[7:39]})[0]
    last = driver.step({1: ids[5:6], 0: ids[39:], 2: ids[:2]})[0]
    assert torch.equal(torch.cat([first, middle, last]), alone)


@families
def test_a_prefix_hit_gives_the_same_bits(tmp_path: Path, family: str) -> None:
    """The second sequence reads the first one's two whole pages and computes the rest in pages of its own."""
    driver = Driver(load(tmp_path, family, True), True)
    ids = GOLDENS[family]["ids"]
    alone = driver.step({0: ids})[0]
    driver.tables[1][:2] = driver.tables[0][:2]
    driver.reached[1] = 2 * PAGE_SIZE
    assert torch.equal(driver.step({1: ids[2 * PAGE_SIZE :]})[1], alone[2 * PAGE_SIZE :])


@families
@modes
def test_a_full_hit_computes_the_last_row_and_writes_nothing(tmp_path: Path, family: str, deterministic: bool) -> None:
    """Its row is bound for the null page; the shared pages stay as they were."""
    driver = Driver(load(tmp_path, family, deterministic), deterministic)
    ids = GOLDENS[family]["ids"][: 2 * PAGE_SIZE]
    expected = driver.step({0: ids})[0][-1]
    before = [pages.k_PBKD.clone() for pages in driver.kv]
    driver.tables[1][:2] = driver.tables[0][:2]
    driver.reached[1] = len(ids) - 1
    torch.testing.assert_close(driver.step({1: ids[-1:]}, write=False)[1][0], expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(old, pages.k_PBKD) for old, pages in zip(before, driver.kv, strict=True))


@modes
def test_a_poisoned_sequence_fails_alone(tmp_path: Path, deterministic: bool) -> None:
    """One id's embedding is NaN: only the sequence that holds it gets NaN logits."""
    model = load(tmp_path, "qwen3", deterministic)
    ids = GOLDENS["qwen3"]["ids"]
    sound = [token for token in ids if token != 5]
    alone = Driver(model, deterministic).step({0: sound})[0]
    model.model.embed_tokens.weight[5] = float("nan")
    outs = Driver(model, deterministic).step({1: [5, *sound], 0: sound, 2: sound[:1]})
    assert outs[1].isnan().all()
    torch.testing.assert_close(outs[0], alone)


def test_bfloat16_runs_and_stays_close(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write_tiny(tmp_path, "llama")), tmp_path)
    model = load_model(checkpoint, BuildOptions(dtype=torch.bfloat16))
    logits = Driver(model, False).step({0: GOLDENS["llama"]["ids"]})[0]
    expected = golden_logits("llama")
    assert logits.dtype == torch.float32
    assert ((logits - expected).abs().amax() / expected.abs().amax()) < 0.05
