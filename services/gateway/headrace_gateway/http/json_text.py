"""JSON written by hand where it is written per token: one C call per text instead of an encoder per object."""

import json
from json.encoder import encode_basestring
from typing import Any

quoted = encode_basestring
"""A text as a JSON string, beyond ASCII as it is."""


def compact(value: Any) -> str:
    """Any value, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
