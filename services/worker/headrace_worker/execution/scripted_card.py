"""The model card of the scripted engine (docs/model-card.md): its tokenizer and chat form are built into gateways."""

from __future__ import annotations

import json

from headrace_worker.execution.script import END_TOKEN_IDS, VOCAB_SIZE


def make_scripted_card(max_context: int, default_output: int, fingerprint: bytes) -> bytes:
    """Canonical JSON; limits are tokens, prompt and output together."""
    card = {
        "format": 1,
        "kind": "scripted",
        "family": "scripted",
        "fingerprint": fingerprint.hex(),
        "capabilities": {"chat": True},
        "limits": {
            "max_context": max_context,
            "default_output": min(default_output, max_context),
            "vocab_size": VOCAB_SIZE,
        },
        "end_token_ids": sorted(END_TOKEN_IDS),
    }
    return json.dumps(card, sort_keys=True, separators=(",", ":")).encode()
