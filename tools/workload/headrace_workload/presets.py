"""Workloads by name."""

from collections.abc import Mapping
from typing import Any

# A burst as it happens (ServeGen m-large, day 9 18:20: 156 to 504 requests per second within ten minutes), at the
# figures of the design: prompts with a median of 640 and a 95th percentile of 4,096 tokens, output limit 512.
_CHAT = {"prompt": {"p50": 640, "p95": 4096, "max": 16384}, "output": {"p50": 80, "p95": 400}, "max_output": 512}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "chat-burst": {
        "name": "chat-burst",
        "phases": [
            {"for_s": 120, "rps": 120},
            {"for_s": 10, "rps": 120, "to_rps": 360},
            {"for_s": 170, "rps": 360},
            {"for_s": 10, "rps": 360, "to_rps": 120},
            {"for_s": 110, "rps": 120},
        ],
        "mix": [{"model": "fast", "weight": 3, **_CHAT}, {"model": "deep", "weight": 1, **_CHAT}],
    },
    "chat": {"name": "chat", "phases": [{"for_s": 60, "rps": 10}], "mix": [{"model": "fast", **_CHAT}]},
    "conversation": {
        "name": "conversation",
        "phases": [{"for_s": 600, "rps": 10}],
        "mix": [
            {
                "model": "fast",
                "prompt": {"p50": 60, "p95": 400},
                "output": {"p50": 120, "p95": 450},
                "max_output": 512,
                "max_prompt": 16000,
                "sessions": {"turns": 5, "think_s": 25},
                "prefix": {"count": 20, "tokens": 1200},
            }
        ],
    },
}
