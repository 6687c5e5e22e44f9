"""The server under test: how to ask it, and what it turned out to be able to do."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_conformance.chunks import ChunkStream
from headrace_conformance.client import Answer, Client
from headrace_conformance.recording import Recording
from headrace_conformance.script import Element, script
from headrace_conformance.tolerant import a_list, a_text, an_object

PLAIN = "Count from one to five."
PLAIN_TOKENS = 16


class Unreachable(Exception):
    """The server cannot be tested at all: one sentence that says why."""


@dataclass(frozen=True)
class Options:
    """``grpc`` is host:port or empty; ``control`` allows killing the processes of the platform in ``state_dir``."""

    url: str
    api_key: str = ""
    model: str = ""
    grpc: str = ""
    control: bool = False
    state_dir: Path = field(default_factory=lambda: Path(os.environ.get("HEADRACE_STATE_DIR", "")))

    @property
    def origin(self) -> str:
        """The URL without a trailing /v1."""
        return self.url.rstrip("/").removesuffix("/v1")


class Target:
    """``scripted``: the model plays scripts. ``recordings`` is filled before the first rule."""

    def __init__(self, options: Options, client: Client) -> None:
        self.options, self.client = options, client
        self.model = options.model
        self.scripted = False
        self.recordings: tuple[Recording, ...] = ()

    async def find_out(self) -> None:
        """Chooses the model if none was named, and asks it to play a script. Raises Unreachable."""
        if not self.model:
            self.model = await self._only_model()
        played = await self.chat(script("Hel", "lo"), max_tokens=8)
        if played.status != 200:
            raise Unreachable(f"a chat with model {self.model!r} is answered with status {played.status}: "
                              f"{played.body[:200].decode('utf-8', 'replace')}")  # fmt: skip
        self.scripted = ChunkStream(played).text() == "Hello"

    def body(self, content: Any, *, stream: bool = True, **fields: Any) -> dict[str, Any]:
        """A chat of one user message; greedy unless a field says otherwise."""
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "stream": stream, "temperature": 0, **fields}

    async def chat(self, content: Any, *, name: str = "chat", **fields: Any) -> Recording:
        """One recorded chat stream."""
        return await self.client.record(name, "chat", self.body(content, **fields))

    async def play(self, *elements: Element, **fields: Any) -> ChunkStream:
        """One stream of a script."""
        return ChunkStream(await self.chat(script(*elements), **fields))

    async def whole(self, content: Any, *, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """One chat without a stream."""
        body = self.body(content, stream=False, **fields)
        return await self.client.send("POST", "/v1/chat/completions", json=body, headers=headers)

    async def _only_model(self) -> str:
        answer = await self.client.send("GET", "/v1/models")
        names = [a_text(an_object(one).get("id")) for one in a_list(an_object(answer.json).get("data"))]
        if len(names) != 1:
            raise Unreachable(f"--model is needed: GET /v1/models gives status {answer.status}, models {names[:8]}")
        return names[0]


def first_choice(answer: Answer) -> dict[str, Any]:
    """The first choice of a whole chat, or an empty object."""
    return an_object(next(iter(a_list(an_object(answer.json).get("choices"))), None))


def text_of(answer: Answer) -> str:
    return a_text(an_object(first_choice(answer).get("message")).get("content"))


def usage_of(answer: Answer) -> dict[str, Any]:
    return an_object(an_object(answer.json).get("usage"))
