"""The OpenAPI document of the public HTTP surface, put together from the gateway's own tables.

Paths and fields are the gateway's, statuses and codes those of the one table of reasons.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace_gateway.http import chat_request, completions
from headrace_gateway.http.headers import MAX_DEADLINE_MS
from headrace_gateway.http.messages import request as messages_request
from headrace_gateway.http.responses import request as responses_request
from headrace_gateway.labels import REQUEST_ID
from headrace_kit.errors import REASONS
from tools.openapi import bodies
from tools.openapi.answers import SCHEMAS
from tools.openapi.bodies import LABEL, Schema, text

PATH = Path(__file__).parents[2] / "docs/openapi.json"
_INFO = {
    "title": "Headrace",
    "version": "1",
    "description": "The HTTP surface: docs/api.md says what it means. Written by `python -m tools.openapi`.",
}
_STATUSES = {
    400: "A field is wrong, and named",
    401: "No key, or an unknown one",
    403: "The key may not do this",
    404: "There is no such model",
    413: "The body is too large",
    429: "The tenant is over its own share",
    499: "The client left",
    500: "The response failed",
    503: "The platform cannot take it now",
    504: "The deadline passed",
}


class Post(NamedTuple):
    """One path that takes a body: its schema, its answer, and whether it can stream."""

    summary: str
    body: Schema
    answer: str
    streams: bool = True
    error: str = "OpenAiError"


_MESSAGES = bodies.body(messages_request.FIELDS, bodies.MESSAGES, ("model", "messages", "max_tokens"))
_RESPONSES = bodies.body(responses_request.FIELDS, bodies.RESPONSES, ("model", "input"))
_PROMPT_FIELDS = {"model", "input", "instructions", "messages", "system", "tools", "tool_choice"}


def _counted(body: Schema) -> Schema:
    """Counting looks at the prompt alone."""
    properties = {name: schema for name, schema in body["properties"].items() if name in _PROMPT_FIELDS}
    return {**body, "properties": properties, "required": [name for name in body["required"] if name in properties]}


POSTS: Mapping[str, Post] = {
    "/v1/chat/completions": Post(
        "One answer to a conversation, as OpenAI's chat has it",
        bodies.body(chat_request.FIELDS, bodies.CHAT, ("model", "messages")),
        "ChatCompletion",
    ),
    "/v1/completions": Post(
        "A text continued, as OpenAI's completions have it",
        bodies.body(completions.FIELDS, bodies.COMPLETIONS, ("model", "prompt")),
        "Completion",
    ),
    "/v1/responses": Post("One response, as OpenAI has it; none is stored", _RESPONSES, "Response"),
    "/v1/responses/input_tokens": Post(
        "Prompt tokens of a response's input", _counted(_RESPONSES), "InputTokens", streams=False
    ),
    "/v1/messages": Post("One message, as Anthropic has it", _MESSAGES, "Message", error="AnthropicError"),
    "/v1/messages/count_tokens": Post(
        "Prompt tokens of a message's turns",
        _counted(_MESSAGES),
        "InputTokens",
        streams=False,
        error="AnthropicError",
    ),
}


def document() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {path: {"post": _post(path, post)} for path, post in POSTS.items()}
    paths["/v1/models"] = {"get": _get("The models that the key may name", "ModelList")}
    paths["/v1/models/{model}"] = {"get": _get("One model", "Model")}
    paths["/v1/models/{model}"]["get"]["parameters"].append(
        {"name": "model", "in": "path", "required": True, "schema": text(minLength=1)}
    )
    paths["/healthz"] = {"get": _probe("Whether the process lives", {200: "It does"})}
    paths["/readyz"] = {"get": _probe("Whether requests should come here", {200: "They may", 503: "Not now"})}
    return {
        "openapi": "3.1.0",
        "info": _INFO,
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def render() -> str:
    """The file's text."""
    return json.dumps(document(), indent=1) + "\n"


def _post(path: str, post: Post) -> dict[str, Any]:
    content = {"application/json": {"schema": _named(post.answer)}}
    if post.streams:
        content["text/event-stream"] = {"schema": _named("ServerSentEvent")}
    return {
        "operationId": path.removeprefix("/v1/").replace("/", "_"),
        "summary": post.summary,
        "parameters": _headers() if post.streams else _headers()[:1],
        "requestBody": {"required": True, "content": {"application/json": {"schema": post.body}}},
        "responses": {
            "200": {"description": "The answer", "headers": _answer_headers(post.streams), "content": content},
            **_errors(post.error),
        },
    }


def _get(summary: str, answer: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _named(answer)}}
    return {
        "operationId": answer,
        "summary": summary,
        "parameters": _headers()[:1],
        "responses": {
            "200": {"description": "The answer", "headers": _answer_headers(False), "content": content},
            **_errors("OpenAiError", max_status=404),
        },
    }


def _probe(summary: str, statuses: Mapping[int, str]) -> dict[str, Any]:
    plain = {"text/plain": {"schema": text()}}
    answers = {str(status): {"description": what, "content": plain} for status, what in statuses.items()}
    return {"summary": summary, "security": [], "responses": answers}


def _errors(schema: str, max_status: int = 599) -> dict[str, Any]:
    """Every status that a reason of the table has."""
    used = sorted({row.http for row in REASONS.values() if row.phase != "choice"} | {503})
    content = {"application/json": {"schema": _named(schema)}}
    return {
        str(status): {"description": _STATUSES[status], "headers": _answer_headers(False), "content": content}
        for status in used
        if status <= max_status or status == 503
    }


def _headers() -> list[dict[str, Any]]:
    """What a caller may say for any API; the id comes first."""
    schemas: dict[str, Schema] = {
        "x-request-id": text(description=f"Echoed if it is {REQUEST_ID.pattern}, else replaced; never a key."),
        "x-headrace-retry-of": LABEL,
        "x-headrace-session": LABEL,
        "x-headrace-class": LABEL,
        "x-headrace-deadline-ms": {"type": "integer", "minimum": 1, "maximum": MAX_DEADLINE_MS},
    }
    return [{"name": name, "in": "header", "required": False, "schema": schema} for name, schema in schemas.items()]


def _answer_headers(generated: bool) -> dict[str, Any]:
    names = ["x-request-id", *(["x-headrace-response-id", "x-headrace-snapshot"] if generated else [])]
    return {name: {"required": True, "schema": text()} for name in names}


def _named(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}
