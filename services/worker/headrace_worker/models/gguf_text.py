"""Tokenizer and chat template of a GGUF file, rebuilt in the format of the `tokenizers` library.

Only byte-level BPE ("gpt2") is known. GGUF names the pre-tokenizer; each name stands for the regular expressions that
llama.cpp (`llama-vocab.cpp`) and the original tokenizer.json agree on.
"""

from typing import Any

from headrace_worker.models.errors import CheckpointError, UnsupportedModelError
from headrace_worker.models.gguf_file import GgufFile
from headrace_worker.models.text_assets import TextAssets, canonical_json, turn_end_ids

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_GPT2_WORDS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES_ONLY = {**_GPT2_WORDS, "use_regex": False}
_SINGLE_DIGITS = {"type": "Digits", "individual_digits": True}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(number: str) -> dict[str, Any]:
    pattern = {"Regex": _WORDS.replace("NUMBER", number)}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_PRE_TOKENIZERS = {
    "gpt-2": _GPT2_WORDS,
    "default": _GPT2_WORDS,
    "smollm": _sequence(_SINGLE_DIGITS, _GPT2_WORDS),
    "llama-bpe": _sequence(_split(r"\p{N}{1,3}"), _BYTES_ONLY),
    "qwen2": _sequence(_split(r"\p{N}"), _BYTES_ONLY),
}
_NORMALIZED = {"qwen2": {"type": "NFC"}}
_WHOLE_WORDS_FIRST = {"llama-bpe"}
"""Their tokenizers take a word that is in the vocabulary as it is, whatever the merges say."""


def read_gguf_text(file: GgufFile) -> TextAssets:
    """Raises UnsupportedModelError for another kind of tokenizer, CheckpointError for damaged metadata."""
    kind = file.get("tokenizer.ggml.model", str)
    pre = file.get("tokenizer.ggml.pre", str, "default")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModelError(f"{file.path.name}: tokenizer {kind}/{pre}; gpt2 with one of {known} is known")
    tokens = file.array("tokenizer.ggml.tokens", str)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise CheckpointError(file.path.name, "tokenizer.ggml.tokens holds a token twice")
    template = file.get("tokenizer.chat_template", str, "") or None
    return TextAssets(
        tokenizer_json=canonical_json(_tokenizer(file, pre, tokens, vocabulary)),
        chat_template=template,
        end_token_ids=_end_token_ids(file, tokens, turn_end_ids(template, vocabulary)),
        special_tokens=_special_tokens(file, tokens),
    )


def _tokenizer(file: GgufFile, pre: str, tokens: list[str], vocabulary: dict[str, int]) -> dict[str, Any]:
    merges = [merge.split(" ") for merge in file.array("tokenizer.ggml.merges", str)]
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in vocabulary or not vocabulary.keys() >= set(merge):
            raise CheckpointError(
                file.path.name, f"tokenizer.ggml.merges: {' '.join(merge)!r} is not in the vocabulary"
            )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, tokens),
        "normalizer": _NORMALIZED.get(pre),
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "post_processor": _post_processor(file, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _added_tokens(file: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    kinds = file.array("tokenizer.ggml.token_type", int) if file.has("tokenizer.ggml.token_type") else []
    if kinds and len(kinds) != len(tokens):
        raise CheckpointError(file.path.name, f"tokenizer.ggml.token_type has {len(kinds)} of {len(tokens)} entries")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": tokens[number], **flags, "special": kind == _CONTROL}
        for number, kind in enumerate(kinds)
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _token_id(file: GgufFile, name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if not file.has(key):
        return None
    number = file.get(key, int)
    if not 0 <= number < num_tokens:
        raise CheckpointError(file.path.name, f"{key} {number} is outside a vocabulary of {num_tokens}")
    return number


def _post_processor(file: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    """One beginning-of-sequence token before raw text, where the file asks for it."""
    number = _token_id(file, "bos", len(tokens))
    if number is None or not file.get("tokenizer.ggml.add_bos_token", bool, False):
        return None
    bos = {"SpecialToken": {"id": tokens[number], "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    entry = {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
    template = {"single": [bos, first], "pair": [bos, first, second], "special_tokens": {tokens[number]: entry}}
    return {"type": "TemplateProcessing", **template}


def _end_token_ids(file: GgufFile, tokens: list[str], end_ids: set[int]) -> tuple[int, ...]:
    found = (_token_id(file, name, len(tokens)) for name in ("eos", "eot", "eom"))
    return tuple(sorted(end_ids | {number for number in found if number is not None}))


def _special_tokens(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    numbers = {variable: _token_id(file, name, len(tokens)) for variable, name in names.items()}
    return {variable: tokens[number] for variable, number in numbers.items() if number is not None}
