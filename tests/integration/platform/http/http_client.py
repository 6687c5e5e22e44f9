"""Plain HTTP to a running platform: what was sent and what came, without a client's own ideas."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from tests.integration.platform.running_platform import Platform


class Sse(NamedTuple):
    """One server-sent event; `data` is parsed JSON, or "[DONE]"."""

    event: str
    data: Any


class Http:
    """Calls as the platform's own key."""

    def __init__(self, platform: Platform) -> None:
        self._headers = {"authorization": f"Bearer {platform.api_key}"}
        self.client = httpx.Client(base_url=platform.http, headers=self._headers, trust_env=False, timeout=20.0)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(path, json=body, headers=named)

    def stream(self, path: str, body: Any) -> list[Sse]:
        """The whole stream; fails if there is none."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        return list(parse(answer.text))

    def refused(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status_code == status, f"{body} gave {answer.status_code}: {answer.text[:300]}"
        error: dict[str, Any] = answer.json()["error"]
        return error


def parse(text: str) -> Iterator[Sse]:
    """Events of a stream; comments are left out."""
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        data = fields["data"]
        yield Sse(fields.get("event", ""), data if data == "[DONE]" else json.loads(data))


def script(*steps: Any) -> str:
    """The text that makes the scripted engine do these steps."""
    return json.dumps(list(steps))


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def call_script(arguments: str, *, name: str = "weather", cut: int | None = None) -> str:
    """A text that makes the scripted engine write a call, one character per step; `cut`: only so many of them."""
    text = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    return script(*text[:cut])
