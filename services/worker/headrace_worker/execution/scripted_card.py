"""The model card of the scripted engine. Agrees with docs/model-card.md; knows no model."""

from __future__ import annotations

import json


def make_scripted_card(max_context: int, default_output: int, fingerprint: bytes) -> bytes:
    """Canonical JSON: the gateway has the byte tokenizer built in, so the card only names it."""
    card = {
        "format": 1,
        "kind": "scripted",
        "limits": {"max_context": max_context, "default_output": default_output, "vocab_size": 260},
        "end_token_ids": [257, 259],
        "fingerprint": fingerprint.hex(),
    }
    return json.dumps(card, sort_keys=True, separators=(",", ":")).encode()
