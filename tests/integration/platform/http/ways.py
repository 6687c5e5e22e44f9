"""One request over every way in, and what came of it in the same words, so that a case is written once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace_cli.client import build_request
from headrace_cli.client.stream import TERMINALS
from headrace_kit.errors import HeadraceError
from tests.integration.platform.http.http_client import Http
from tests.integration.platform.running_platform import Platform

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]


@dataclass
class Outcome:
    """Choice 0 unless said otherwise. `ending` is how the stream ended: completed, or the reason of its error."""

    response_id: str = ""
    pieces: list[str] = field(default_factory=list)
    reasoning: str = ""
    tokens: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)  # of all choices
    usage: tuple[int, int] = (0, 0)  # prompt, output
    ending: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Way(Protocol):
    """A way in. `options` have the names of GenerateRequest and Sampling."""

    def run(self, prompt: Prompt, **options: Any) -> Outcome: ...

    def refused(self, prompt: Prompt, **options: Any) -> tuple[str, str]:
        """The reason and the field of a refusal; fails if it is none."""
        ...


class GrpcWay:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def run(self, prompt: Prompt, **options: Any) -> Outcome:
        found = Outcome()
        with self._platform.client() as client:
            for event in client.generate("scripted", prompt, **options):
                self._take(found, event)
        return found

    def refused(self, prompt: Prompt, **options: Any) -> tuple[str, str]:
        try:
            build_request("scripted", prompt, **options)
        except (TypeError, ValueError):
            return "invalid_argument", next(iter(options), "")  # the message itself cannot hold it
        try:
            found = self.run(prompt, **options)
        except HeadraceError as error:
            return error.reason, error.field or ""
        raise AssertionError(f"it was served: {found}")

    @staticmethod
    def _take(found: Outcome, event: Any) -> None:
        kind = event.WhichOneof("event")
        found.response_id = event.response_id
        if kind == "delta" and event.delta.choice == 0:
            found.pieces += [event.delta.text] if event.delta.text else []
            found.reasoning += event.delta.reasoning
            found.tokens += [one.token for one in event.delta.logprobs]
        elif kind == "choice_finished":
            found.reasons.append(event.choice_finished.reason)
        elif kind in TERMINALS:
            terminal = getattr(event, kind)
            found.ending = terminal.reason if kind in ("failed", "cancelled") else "completed"
            found.usage = terminal.usage.num_prompt_tokens, terminal.usage.num_output_tokens


class HttpWay:
    """`stream`: as server-sent events, else as one answer."""

    def __init__(self, http: Http, *, stream: bool) -> None:
        self._http, self.streams = http, stream

    def run(self, prompt: Prompt, **options: Any) -> Outcome:
        path, body = self._asked(prompt, options)
        if not self.streams:
            return self._whole(self._http.post(path, body).json())
        found = Outcome()
        for event in self._http.stream(path, {**body, "stream_options": {"include_usage": True}}):
            if event.data == "[DONE]":
                assert not found.ending, "after an error no [DONE] follows"
                found.ending = "completed"
            else:
                self._take(found, event.data)
        return found

    def refused(self, prompt: Prompt, **options: Any) -> tuple[str, str]:
        path, body = self._asked(prompt, options)
        error = self._http.refused(path, {**body, "stream": self.streams})
        assert "response_id" not in error, "no identity was opened"
        return error["code"], (error["param"] or "").replace("max_tokens", "max_output_tokens")

    @staticmethod
    def _asked(prompt: Prompt, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {"model": "scripted", **options}
        if "max_output_tokens" in body:
            body["max_tokens"] = body.pop("max_output_tokens")
        if not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], dict)):
            return "/v1/chat/completions", {**body, "messages": prompt}
        return "/v1/completions", {**body, "prompt": prompt}

    @staticmethod
    def _take(found: Outcome, data: dict[str, Any]) -> None:
        if "error" in data:
            found.ending = data["error"]["code"]
            return
        found.response_id = data["id"]
        if usage := data.get("usage"):
            found.usage = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in data["choices"]:
            delta = choice.get("delta", {"content": choice.get("text", "")})
            found.reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            if choice["index"] == 0:
                found.pieces += [delta["content"]] if delta.get("content") else []
                found.reasoning += delta.get("reasoning_content", "")
                found.tokens += [one["token"] for one in (choice.get("logprobs") or {}).get("content", [])]

    def _whole(self, body: dict[str, Any]) -> Outcome:
        found = Outcome()
        for choice in body.get("choices", []):
            if "message" in choice:
                choice["delta"] = choice["message"]
        self._take(found, body)
        found.ending = found.ending or "completed"
        return found
