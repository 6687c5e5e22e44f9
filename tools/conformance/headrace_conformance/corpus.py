"""The streams that the pure checks look at: one set of requests per surface, recorded once before the rules run."""

from collections.abc import Iterator
from typing import Any

from headrace_conformance.recording import Recording, Surface
from headrace_conformance.script import ERROR, script
from headrace_conformance.target import PLAIN, PLAIN_TOKENS, Target

_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
_LIMIT_FIELD: dict[Surface, str] = {"responses": "max_output_tokens"}
_FIELDS: dict[Surface, dict[str, dict[str, Any]]] = {
    "chat": {
        "plain": {},
        "usage": _USAGE,
        "n": {"n": 2, **_USAGE},
        "logprobs": {"logprobs": True, "top_logprobs": 2, **_USAGE},
        "stop": {"stop": ["e"], **_USAGE},
        "length": {"limit": 2, **_USAGE},
    },
    "completions": {"plain": {}, "usage": _USAGE, "length": {"limit": 2, **_USAGE}},
    "responses": {"plain": {}, "length": {"limit": 2}},
    "messages": {"plain": {}, "length": {"limit": 2}},
}


async def record(target: Target) -> tuple[Recording, ...]:
    """Every stream of the corpus; a surface that is not served is one recording with its status."""
    found: list[Recording] = []
    for surface in _FIELDS:
        for name, body in _requests(target, surface):
            recording = await target.client.record(f"{surface}/{name}", surface, body)
            found.append(recording)
            if recording.status in (404, 405):
                break
    return tuple(found)


def _requests(target: Target, surface: Surface) -> Iterator[tuple[str, dict[str, Any]]]:
    content = script("Head", "race", " says", " hello", ".") if target.scripted else PLAIN
    for name, fields in _FIELDS[surface].items():
        yield name, _body(target, surface, content, fields)
    if target.scripted:
        yield "failed", _body(target, surface, script("Hel", "lo", ERROR), {})


def _body(target: Target, surface: Surface, content: str, fields: dict[str, Any]) -> dict[str, Any]:
    limit_field = _LIMIT_FIELD.get(surface, "max_tokens")
    body: dict[str, Any] = {"model": target.model, "stream": True, "temperature": 0, limit_field: PLAIN_TOKENS}
    if surface == "completions":
        body["prompt"] = content
    elif surface == "responses":
        body |= {"input": content, "store": False}
    else:
        body["messages"] = [{"role": "user", "content": content}]
    rest = {key: value for key, value in fields.items() if key != "limit"}
    return {**body, **rest, limit_field: fields.get("limit", PLAIN_TOKENS)}
