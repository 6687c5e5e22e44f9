"""A session without a platform: what HTTP reads of one, and what it calls."""

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.v1 import inference_pb2, policy_pb2
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.lifecycle import outputs
from headrace_gateway.lifecycle.settlement import Usage

HEAD = Head("resp_1", "scripted", 1_700_000_000, num_choices=2, num_prompt_tokens=7)
USAGE = Usage(7, 4, 3)


class FakeSession:
    """`left` lists why the client is said to have gone."""

    response_id = "resp_1"
    snapshot_version = 4

    def __init__(self, request: inference_pb2.GenerateRequest | None = None) -> None:
        self.left: list[str] = []
        self.has_left = asyncio.Event()
        limits = [policy_pb2.RateLimit(name="requests", limit=60, remaining=58.7, reset_ms=1300)]
        self.prepared = SimpleNamespace(request=request or inference_pb2.GenerateRequest(), rate_limits=limits)

    def leave(self, reason: str) -> None:
        self.left.append(reason)
        self.has_left.set()


def asked(**fields: Any) -> Asked:
    return Asked(inference_pb2.GenerateRequest(), stream=True, **fields)


def ended(kind: str = "completed", reason: str = "stop") -> outputs.Terminal:
    return outputs.Terminal(99, kind, reason, "", USAGE)


def delta(text: str, choice: int = 0) -> outputs.Delta:
    return outputs.Delta(0, choice, text, 1, ())
