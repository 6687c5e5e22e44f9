"""Model cards: the same bytes for the same model, another digest for another, and what a gateway reads from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_worker.models.checkpoint import Checkpoint, open_checkpoint
from headrace_worker.models.errors import CheckpointError
from tests.unit.worker.models.tiny import TINY, TOKENIZER, write_tiny

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
MARKED = {**TOKENIZER, "added_tokens": [{"id": 60, "content": "<|im_end|>", "special": True}]}


def open_tiny(directory: Path, **files: Any) -> Checkpoint:
    """A tiny Llama with more files, named with `__` for the dot; texts as they are, all else as JSON."""
    write_tiny(directory, "llama")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)
    return open_checkpoint(str(directory), directory)


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(checkpoint.card(default_output=100).to_bytes())
    return raw


def test_the_same_model_elsewhere_has_the_same_card(tmp_path: Path) -> None:
    first, second = (open_tiny(tmp_path / name).card(100) for name in ("first", "second"))
    assert first.to_bytes() == second.to_bytes()
    assert first.digest() == second.digest()
    assert len(first.digest()) == 32


def test_the_card_carries_the_tokenizer_text_unchanged(tmp_path: Path) -> None:
    card = contents(open_tiny(tmp_path))
    assert card["tokenizer"] == (tmp_path / "tokenizer.json").read_text()
    assert card["format"] == 1


def test_a_base_model_cannot_chat(tmp_path: Path) -> None:
    """B135: known from the card alone."""
    card = contents(open_tiny(tmp_path))
    assert card["capabilities"] == {"chat": False}
    assert card["chat_template"] is None


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template__jinja": TEMPLATE},
        {"tokenizer_config__json": {"chat_template": TEMPLATE}},
        {
            "tokenizer_config__json": {
                "chat_template": [{"name": "tool_use"}, {"name": "default", "template": TEMPLATE}]
            }
        },
    ],
)
def test_a_template_makes_it_chat_wherever_it_stands(tmp_path: Path, files: dict[str, Any]) -> None:
    card = contents(open_tiny(tmp_path, **files))
    assert card["capabilities"] == {"chat": True}
    assert card["chat_template"] == TEMPLATE


def test_every_end_token_counts_once(tmp_path: Path) -> None:
    """From config.json (2), generation_config.json (7 and 2) and the template's turn marker (60)."""
    files = {"generation_config__json": {"eos_token_id": [7, 2]}, "chat_template__jinja": TEMPLATE}
    assert contents(open_tiny(tmp_path, tokenizer__json=MARKED, **files))["end_token_ids"] == [2, 7, 60]


def test_the_tokenizers_own_end_token_is_the_last_resort(tmp_path: Path) -> None:
    config = {key: value for key, value in TINY["llama"].items() if key != "eos_token_id"}
    settings = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "t1"}
    card = contents(open_tiny(tmp_path, config__json=config, tokenizer__json=MARKED, tokenizer_config__json=settings))
    assert card["end_token_ids"] == [60]
    assert card["special_tokens"] == {"bos_token": "t1", "eos_token": "<|im_end|>"}


def test_limits_never_exceed_the_model(tmp_path: Path) -> None:
    checkpoint = open_tiny(tmp_path)
    assert checkpoint.card(1024).contents()["limits"] == {"max_context": 256, "default_output": 256, "vocab_size": 64}
    limits = checkpoint.card(1024, max_context=100).contents()["limits"]
    assert (limits["max_context"], limits["default_output"]) == (100, 100)
    assert checkpoint.card(10, max_context=9999).contents()["limits"]["max_context"] == 256


def test_weights_config_and_revision_all_shape_the_fingerprint(tmp_path: Path) -> None:
    plain = open_tiny(tmp_path / "plain")
    other_config = open_tiny(tmp_path / "config", config__json={**TINY["llama"], "rope_theta": 500.0})
    directory = tmp_path / "weights"
    open_tiny(directory)
    raw = bytearray((directory / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (directory / "model.safetensors").write_bytes(raw)
    other_weights = open_checkpoint(str(directory), directory)
    assert len({plain.fingerprint, other_config.fingerprint, other_weights.fingerprint}) == 3
    assert plain.revision == plain.fingerprint[:12]


@pytest.mark.parametrize(
    ("files", "file", "detail"),
    [
        ({"tokenizer__json": "{"}, "tokenizer.json", "is not JSON"),
        ({"tokenizer__json": {"added_tokens": [{"id": "x"}]}}, "tokenizer.json", "added_tokens is malformed"),
        ({"tokenizer_config__json": {"chat_template": 3}}, "tokenizer_config.json", "chat_template must be"),
        ({"generation_config__json": {"eos_token_id": "2"}}, "generation_config.json", "eos_token_id must be"),
        ({"generation_config__json": {"eos_token_id": 64}}, "", "end token 64 is outside a vocabulary of 64"),
    ],
)
def test_damaged_text_files_are_named(tmp_path: Path, files: dict[str, Any], file: str, detail: str) -> None:
    with pytest.raises(CheckpointError, match=detail) as caught:
        open_tiny(tmp_path, **files)
    assert str(caught.value).startswith(file)
