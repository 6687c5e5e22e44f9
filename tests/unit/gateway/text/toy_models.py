"""Small real tokenizers of the families we serve, trained on the spot, as model cards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from headrace_gateway.text.card import ModelCard, parse_card
from headrace_gateway.text.prompt import PromptEncoder

CORPUS = [
    "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\n",
    "user\nWhat is the capital of France? assistant\nThe capital of France is Paris.\n",
    "Hello world, hello there, 123 + 456 = 579. naïve café – emoji 😀 and 日本語 im_start im_end\n",
] * 4

# The template of SmolLM2-135M-Instruct.
SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2_TEMPLATE = "{{ bos_token }}{% for message in messages %}[INST] {{ message.content | trim }} [/INST]{% endfor %}"


def make_card(**fields: Any) -> bytes:
    """Bytes of a card; a field given as None is left out."""
    card: dict[str, Any] = {
        "format": 1,
        "kind": "scripted",
        "fingerprint": "00ff",
        "limits": {"max_context": 8192, "default_output": 1024, "vocab_size": 260},
        "end_token_ids": [257, 259],
    }
    card |= fields
    return json.dumps({name: value for name, value in card.items() if value is not None}).encode()


def scripted() -> ModelCard:
    return parse_card(make_card())


@cache
def encoder(name: str) -> PromptEncoder:
    """Built once: loading a tokenizer takes longer than using it."""
    cards: dict[str, Callable[[], ModelCard]]
    cards = {"scripted": scripted, "byte_level": byte_level, "sentencepiece": sentencepiece}
    return PromptEncoder(cards[name]())


def card_of(tokenizer: Tokenizer, template: str | None, bos: str, eos: str) -> ModelCard:
    text = tokenizer.to_str()
    limits = {"max_context": 8192, "default_output": 1024, "vocab_size": tokenizer.get_vocab_size()}
    fields = {
        "kind": "huggingface",
        "limits": limits,
        "end_token_ids": [tokenizer.token_to_id(eos)],
        "tokenizer": text,
        "tokenizer_digest": hashlib.sha256(text.encode()).hexdigest(),
        "chat_template": template,
        "special_tokens": {"bos_token": bos, "eos_token": eos},
    }
    return parse_card(make_card(**fields))


@cache
def byte_level() -> ModelCard:
    """Byte-level BPE with single digits, as SmolLM2's, with a visible added token."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "two words"])
    return card_of(tokenizer, SMOLLM2_TEMPLATE, "<|im_start|>", "<|im_end|>")


@cache
def sentencepiece() -> ModelCard:
    """SentencePiece-style BPE with byte fallback, as Llama 2's, which puts <s> before raw text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=["<unk>", "<s>", "</s>", *fallback])
    tokenizer.train_from_iterator(CORPUS, trainer)
    values = json.loads(tokenizer.to_str())
    values["added_tokens"] = [entry for entry in values["added_tokens"] if not entry["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(values))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return card_of(tokenizer, LLAMA2_TEMPLATE, "<s>", "</s>")


@cache
def metaspace() -> ModelCard:
    """Unigram pieces under a Metaspace decoder."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁Hello", -1.0), ("▁world", -1.0), ("▁", -3.0)]
    pieces += [(letter, -5.0) for letter in "Helowrd"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return card_of(tokenizer, LLAMA2_TEMPLATE, "<s>", "</s>")
