"""What turns text into ids for one model, gathered from its files. The gateway gets it inside the model card."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.json_file import JsonFile

TURN_END_MARKERS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
"""Tokens that end an assistant's turn in the chat templates we have met."""


@dataclass(frozen=True)
class TextAssets:
    """Raw completions are encoded with the tokenizer's special tokens, chat prompts without (the template has them)."""

    tokenizer_json: str
    """In the format of the `tokenizers` library."""
    chat_template: str | None
    """Jinja; None for a base model, which cannot chat."""
    end_token_ids: tuple[int, ...]
    """Every id that ends a generation, ascending."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Variables that templates expect: bos_token, eos_token, unk_token, pad_token."""


def turn_end_ids(chat_template: str | None, vocabulary: dict[str, int]) -> set[int]:
    """Ids of the turn markers that the template writes."""
    if chat_template is None:
        return set()
    return {vocabulary[mark] for mark in TURN_END_MARKERS if mark in chat_template and mark in vocabulary}


def read_hf_text(directory: Path) -> TextAssets:
    """From tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json and config.json."""
    path = directory / "tokenizer.json"
    tokenizer = JsonFile(path)
    settings = JsonFile(directory / "tokenizer_config.json", optional=True)
    template = _chat_template(directory, settings)
    vocabulary = _special_ids(tokenizer)
    end_ids = turn_end_ids(template, vocabulary)
    for name in ("generation_config.json", "config.json"):
        end_ids |= _eos_ids(JsonFile(directory / name, optional=True))
    special_tokens = _special_tokens(settings)
    if not end_ids and special_tokens.get("eos_token") in vocabulary:
        end_ids.add(vocabulary[special_tokens["eos_token"]])
    return TextAssets(path.read_text(encoding="utf-8"), template, tuple(sorted(end_ids)), special_tokens)


def _special_ids(tokenizer: JsonFile) -> dict[str, int]:
    added = tokenizer.values.get("added_tokens") or []
    try:
        return {entry["content"]: int(entry["id"]) for entry in added}
    except (TypeError, KeyError, ValueError):
        raise CheckpointError(tokenizer.name, "added_tokens is malformed") from None


def _chat_template(directory: Path, settings: JsonFile) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(path.name, "is not UTF-8") from None
    template: Any = settings.values.get("chat_template")
    if isinstance(template, list):  # several named templates; "default" is the one for chat
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(settings.name, "chat_template must be a string or a list of named templates")
    return template or None


def _eos_ids(file: JsonFile) -> set[int]:
    value = file.values.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
        raise CheckpointError(file.name, f"eos_token_id must be an id or a list of ids, is {value!r}")
    return set(values)


def _special_tokens(settings: JsonFile) -> dict[str, str]:
    tokens = {}
    for field_name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.values.get(field_name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[field_name] = content
    return tokens


def canonical_json(value: Any) -> str:
    """The same text for the same value, always."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
