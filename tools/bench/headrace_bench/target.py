"""One streamed request to an OpenAI-style server. Knows the two completion endpoints and no workload."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from headrace_bench.outcome import Outcome
from headrace_bench.sse import EventReader

Endpoint = Literal["chat", "completions"]
_PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}


@dataclass(frozen=True)
class Ask:
    """What is sent. `extra` goes into the body as it is, in place of what would be there (`messages`, say)."""

    model: str
    prompt: str
    max_tokens: int
    endpoint: Endpoint = "chat"
    extra: Mapping[str, Any] | None = None

    def body(self) -> dict[str, Any]:
        is_chat = self.endpoint == "chat"
        return {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"messages": [{"role": "user", "content": self.prompt}]} if is_chat else {"prompt": self.prompt}),
            **(self.extra or {}),
        }


class Target:
    """`base_url` ends in the version, such as http://127.0.0.1:8000/v1. `clock` gives seconds."""

    def __init__(
        self, client: httpx.AsyncClient, base_url: str, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._client, self._base_url, self._clock = client, base_url.rstrip("/"), clock

    async def models(self) -> list[str]:
        """Names of the models that the server has; raises httpx.HTTPError."""
        answer = await self._client.get(f"{self._base_url}/models")
        answer.raise_for_status()
        return [str(model["id"]) for model in answer.json()["data"]]

    async def run(self, ask: Ask, outcome: Outcome, start_s: float) -> None:
        """Sends it and follows the stream to its end; whatever goes wrong is the outcome's error."""
        outcome.sent_s = self._clock() - start_s
        try:
            await self._follow(ask, outcome, start_s)
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:200]
        outcome.ended_s = self._clock() - start_s
        if not outcome.counted_by_server:
            outcome.num_output = len(outcome.texts_s)

    async def _follow(self, ask: Ask, outcome: Outcome, start_s: float) -> None:
        url = self._base_url + _PATHS[ask.endpoint]
        async with self._client.stream("POST", url, json=ask.body()) as answer:
            if answer.status_code != 200:
                outcome.error = f"HTTP {answer.status_code}: {_message(await answer.aread())}"
                return
            reader, is_done = EventReader(), False
            async for chunk in answer.aiter_bytes():
                now_s = self._clock() - start_s
                for data in reader.feed(chunk):
                    is_done = is_done or data == b"[DONE]"
                    if data != b"[DONE]":
                        _take(json.loads(data), outcome, now_s)
        if not is_done and not outcome.error:
            outcome.error = "the stream ended without [DONE]"


def _take(event: Mapping[str, Any], outcome: Outcome, now_s: float) -> None:
    if event.get("error"):
        outcome.error = f"in the stream: {event['error'].get('message', '')}"[:200]
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls")
        if text:
            outcome.texts_s.append(now_s)
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
    usage = event.get("usage")
    if usage:
        outcome.counted_by_server = True
        outcome.num_prompt, outcome.num_output = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        outcome.num_cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error.get("message", error))[:160]
    except (ValueError, KeyError, TypeError, AttributeError):
        return body[:160].decode(errors="replace")
