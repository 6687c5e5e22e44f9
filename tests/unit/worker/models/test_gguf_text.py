"""Tokenizers rebuilt from GGUF metadata: beginning tokens, end tokens, chat templates and damage."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.gguf_file import GgufFile
from headrace_worker.models.gguf_text import read_gguf_text
from headrace_worker.models.text_assets import TextAssets
from tests.unit.worker.models.gguf_fixture import GgufFixture

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def text_of(fixture: GgufFixture, tmp_path: Path) -> TextAssets:
    return read_gguf_text(GgufFile(fixture.write(tmp_path / "a.gguf")))


@pytest.mark.parametrize(("add_bos", "first"), [(True, ["<s>"]), (False, [])])
def test_raw_text_begins_with_one_beginning_token_where_the_file_asks(
    tmp_path: Path, add_bos: bool, first: list[str]
) -> None:
    """B136: the tokenizer adds it to raw text only; a rendered chat prompt is encoded without special tokens."""
    fixture = GgufFixture()
    fixture.add_bos = add_bos
    tokenizer = Tokenizer.from_str(text_of(fixture, tmp_path).tokenizer_json)
    assert tokenizer.encode("AC").tokens == [*first, "A", "C"]
    assert tokenizer.encode("<s>AB", add_special_tokens=False).tokens == ["<s>", "AB"]


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    """B135: chat capability is known when the file is opened."""
    assert text_of(GgufFixture(), tmp_path).chat_template is None


def test_the_templates_turn_marker_ends_a_generation_too(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.chat_template = TEMPLATE
    text = text_of(fixture, tmp_path)
    assert text.chat_template == TEMPLATE
    assert text.end_token_ids == (fixture.tokens.index("</s>"), fixture.tokens.index("<|im_end|>"))
    assert text.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_end_of_turn_ids_of_the_metadata_count(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.numbers["tokenizer.ggml.eot_token_id"] = 62
    assert text_of(fixture, tmp_path).end_token_ids == (61, 62)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_every_known_pre_tokenizer_builds(tmp_path: Path, pre: str) -> None:
    fixture = GgufFixture()
    fixture.pre = pre
    assert Tokenizer.from_str(text_of(fixture, tmp_path).tokenizer_json).encode("12").tokens == ["1", "2"]


def test_an_unknown_pre_tokenizer_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.pre = "tekken"
    with pytest.raises(UnsupportedModelError, match="tokenizer gpt2/tekken"):
        text_of(fixture, tmp_path)


def test_a_token_twice_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.tokens[1] = fixture.tokens[0]
    with pytest.raises(CheckpointError, match="holds a token twice"):
        text_of(fixture, tmp_path)


def test_a_merge_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.merges = ["C D"]
    with pytest.raises(CheckpointError, match="'C D' is not in the vocabulary"):
        text_of(fixture, tmp_path)


def test_an_end_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    fixture = GgufFixture()
    fixture.numbers["tokenizer.ggml.eot_token_id"] = 64
    with pytest.raises(CheckpointError, match="eot_token_id 64 is outside a vocabulary of 64"):
        text_of(fixture, tmp_path)


def test_the_same_file_gives_the_same_text(tmp_path: Path) -> None:
    assert text_of(GgufFixture(), tmp_path) == text_of(GgufFixture(), tmp_path)
