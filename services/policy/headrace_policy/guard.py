"""The guard: a model of our own, asked through a gateway as tenant ``_guard``, whether a text is safe.

Prompt and verdict are Llama Guard's (Meta, Llama Guard model card): the reply begins with ``safe`` or ``unsafe``, and
names broken categories on the next line. Verdicts are kept by a hash of what was asked.
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc

from headrace.v1 import inference_pb2, inference_pb2_grpc, response_pb2

TENANT, KEY_ID = "_guard", "guard"
ASK_S = 1.5
"""Below the time that a gateway gives an admission."""
_MAX_OUTPUT_TOKENS = 20
_MOST_KEPT = 10_000
_SAFE, _UNSAFE = "safe", "unsafe"


class GuardAwayError(Exception):
    """No verdict: the guard did not answer in time, failed, or said neither safe nor unsafe."""


def credential(secret: bytes) -> str:
    """The key that policy itself calls with; it follows from the snapshot's secret and is nowhere stored."""
    return f"hr_{KEY_ID}_{hmac.digest(secret, b'guard credential', 'sha256').hex()}"


def is_unsafe(reply: str) -> bool:
    """Raises GuardAwayError for a reply that is no verdict."""
    words = reply.split(maxsplit=1)
    if not words or words[0].lower() not in (_SAFE, _UNSAFE):
        raise GuardAwayError("the guard's reply is no verdict")
    return words[0].lower() == _UNSAFE


class Guard:
    """``channel`` leads to a gateway's public listener; None: there is no guard."""

    def __init__(self, channel: grpc.aio.Channel | None, secret: Callable[[], bytes], ask_s: float = ASK_S) -> None:
        self._stub: Any = None if channel is None else inference_pb2_grpc.InferenceStub(channel)
        self._secret, self._ask_s = secret, ask_s
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()

    @property
    def reachable(self) -> bool:
        """Whether there is a gateway to ask through; it may be away all the same."""
        return self._stub is not None

    async def unsafe(self, model: str, text: str) -> bool:
        """What the model says of a text, as if a user had sent it; raises GuardAwayError."""
        if self._stub is None:
            raise GuardAwayError("no guard_gateway is configured")
        digest = hashlib.sha256(f"{model}\0{text}".encode("utf-8", "replace")).digest()
        if digest not in self._verdicts:
            self._verdicts[digest] = is_unsafe(await self._ask(model, text))
            while len(self._verdicts) > _MOST_KEPT:
                self._verdicts.popitem(last=False)
        self._verdicts.move_to_end(digest)
        return self._verdicts[digest]

    async def _ask(self, model: str, text: str) -> str:
        request = inference_pb2.GenerateRequest(
            model=model,
            chat=inference_pb2.Conversation(messages=[inference_pb2.Message(role="user", content=text)]),
            max_output_tokens=_MAX_OUTPUT_TOKENS,
            sampling=response_pb2.Sampling(temperature=0.0),
        )
        metadata = (("authorization", f"Bearer {credential(self._secret())}"),)
        try:
            async with asyncio.timeout(self._ask_s):
                return await _text(self._stub.Generate(request, metadata=metadata, timeout=self._ask_s))
        except TimeoutError:
            raise GuardAwayError("the guard did not answer in time") from None
        except grpc.aio.AioRpcError as error:
            raise GuardAwayError(f"the guard was not asked: {error.code().name}") from None


async def _text(events: Any) -> str:
    """The whole reply; one that was cut by its length still begins with its verdict."""
    reply = ""
    async for event in events:
        kind = event.WhichOneof("event")
        if kind == "delta":
            reply += event.delta.text
        elif kind in ("failed", "cancelled"):
            raise GuardAwayError(f"the guard's response was {kind}")
    return reply
