"""The default model, from its real file, against what Hugging Face transformers generates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from headrace_worker.models.checkpoint import Checkpoint, open_checkpoint
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.drive import Driver
from tests.unit.worker.models.smollm2 import CACHE, fetch_smollm2

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "goldens" / "smollm2.json").read_text())
ANSWERS: list[dict[str, Any]] = GOLDEN["answers"]
QUICK = [0, 8, 13, 16]
NUM_QUICK_TOKENS = 24


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(str(fetch_smollm2()), CACHE)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    torch.set_num_threads(1)  # threads that spin for each other crawl on a busy machine
    return load_model(checkpoint, BuildOptions())


def test_golden_prompts_have_the_same_ids(checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer.from_str(checkpoint.text.tokenizer_json)
    for answer in ANSWERS:
        assert tokenizer.encode(answer["text"], add_special_tokens=False).ids == answer["prompt_ids"]


@pytest.mark.parametrize("number", QUICK)
def test_greedy_output_equals_transformers(model: LlamaForCausalLM, number: int) -> None:
    answer = ANSWERS[number]
    driver = Driver(model, deterministic=False, num_sequences=1, max_tokens=512)
    expected = answer["output_ids"][:NUM_QUICK_TOKENS]
    assert driver.greedy(answer["prompt_ids"], NUM_QUICK_TOKENS) == expected


@pytest.fixture(scope="module")
def invariant_model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    return load_model(checkpoint, BuildOptions(deterministic=True))


def test_invariant_logits_are_the_same_bits_alone_batched_and_chunked(invariant_model: LlamaForCausalLM) -> None:
    ids, other = ANSWERS[12]["prompt_ids"][:70], ANSWERS[13]["prompt_ids"]
    alone = Driver(invariant_model, True).step({0: ids})[0]
    driver = Driver(invariant_model, True)
    first = driver.step({1: other, 0: ids[:33]})[0]
    last = driver.step({0: ids[33:], 1: other[:1], 2: other})[0]
    assert torch.equal(torch.cat([first, last]), alone)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(ANSWERS)))
@pytest.mark.parametrize("mode", ["model", "invariant_model"])
def test_all_golden_outputs(request: pytest.FixtureRequest, mode: str, number: int) -> None:
    driver = Driver(request.getfixturevalue(mode), mode == "invariant_model", num_sequences=1, max_tokens=512)
    answer = ANSWERS[number]
    assert driver.greedy(answer["prompt_ids"], len(answer["output_ids"])) == answer["output_ids"]


def test_the_card_says_what_the_model_can_do(checkpoint: Checkpoint) -> None:
    contents = checkpoint.card(default_output=1024).contents()
    assert contents["limits"] == {"max_context": 8192, "default_output": 1024, "vocab_size": 49152}
    assert contents["capabilities"] == {"chat": True}
    assert contents["end_token_ids"] == [2]
    assert contents["special_tokens"]["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("In 1984, 12345", ["In", " ", "1", "9", "8", "4", ",", " ", "1", "2", "3", "4", "5"]),
        ("x   7", ["x", "   ", "7"]),
        ("don't", ["don", "'t"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "\n"]),
    ],
)
def test_pieces_are_those_of_the_original_tokenizer(checkpoint: Checkpoint, text: str, pieces: list[str]) -> None:
    """Every digit stands alone, and spaces before a digit stay together (pre-tokenizer `smollm`)."""
    tokenizer = Tokenizer.from_str(checkpoint.text.tokenizer_json)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert [tokenizer.decode([number], skip_special_tokens=False) for number in ids] == pieces


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n\n\t x",
        "naïve café",
        "日本語のテキスト",
        "🙂🙃👩‍👩‍👧",
        "a" * 300,
        "α≠β ±½ 1/3",
        "tab\tnew\r\nline",
        "\x00\x7f\u200b",
    ],
)
def test_any_text_survives_the_round_trip(checkpoint: Checkpoint, text: str) -> None:
    tokenizer = Tokenizer.from_str(checkpoint.text.tokenizer_json)
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_no_beginning_token_is_added(checkpoint: Checkpoint) -> None:
    """B136: the file says add_bos_token = false, so encoding with and without special tokens is the same."""
    tokenizer = Tokenizer.from_str(checkpoint.text.tokenizer_json)
    assert tokenizer.encode("hi").ids == tokenizer.encode("hi", add_special_tokens=False).ids
