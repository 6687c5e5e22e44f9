"""The OpenAI OpenAPI document as an oracle, with the gaps between it and OpenAI's own streams allowed by name."""

import gzip
import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator

_MAX_SHOWN = 3
Schemas = dict[str, Any]


def problems(schema: str, value: Any) -> list[str]:
    """What is wrong with a value, as ``path: message``; at most three. KeyError: there is no such schema."""
    found = sorted(_validator(schema).iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{'.'.join(map(str, one.absolute_path)) or '(top)'}: {one.message[:160]}" for one in found[:_MAX_SHOWN]]


def event_schema(event_type: str) -> str | None:
    """Name of the schema of a Responses event, by its ``type``."""
    return _event_types().get(event_type)


@cache
def _validator(schema: str) -> Draft202012Validator:
    components = _document()
    if schema not in components:
        raise KeyError(schema)
    return Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": {"schemas": components}})


@cache
def _event_types() -> dict[str, str]:
    schemas = _document()
    names = [option["$ref"].rpartition("/")[2] for option in schemas["ResponseStreamEvent"]["anyOf"]]
    return {kind: name for name in names for kind in schemas[name]["properties"]["type"].get("enum", [])}


@cache
def _document() -> Schemas:
    packed = resources.files(__package__).joinpath("data/openai_openapi.json.gz").read_bytes()
    schemas: Schemas = _translated(json.loads(gzip.decompress(packed))["components"]["schemas"])
    for allow in ALLOWANCES.values():
        allow(schemas)
    return schemas


def _translated(node: Any) -> Any:
    """OpenAPI 3.0's ``nullable: true`` in the words of JSON Schema."""
    if isinstance(node, list):
        return [_translated(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _translated(value) for key, value in node.items() if key != "nullable"}
    return _or_null(plain) if node.get("nullable") is True else plain


def _or_null(schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _null_in_response(schemas: Schemas) -> None:
    for part in schemas["Response"].get("allOf", [schemas["Response"]]):
        properties = part.get("properties", {})
        for name in ("user", "usage"):
            if name in properties:
                properties[name] = _or_null(properties[name])


def _null_model_properties(schemas: Schemas) -> None:
    properties = schemas["ModelResponseProperties"]["properties"]
    properties["user"] = _or_null(properties["user"])


def _not_required(schema: str, *names: str) -> Callable[[Schemas], None]:
    def allow(schemas: Schemas) -> None:
        schemas[schema]["required"] = [name for name in schemas[schema]["required"] if name not in names]

    return allow


def _nested_error(schemas: Schemas) -> None:
    error = schemas["ResponseErrorEvent"]
    nested = {"type": "object", "required": ["type", "error"], "properties": {"error": {"$ref": _ref("Error")}}}
    schemas["ResponseErrorEvent"] = {"anyOf": [{**error}, nested], "properties": error["properties"]}


def _ref(schema: str) -> str:
    return f"#/components/schemas/{schema}"


def _cache_write_tokens(schemas: Schemas) -> None:
    details = schemas["ResponseUsage"]["properties"]["input_tokens_details"]
    details["required"] = [name for name in details["required"] if name != "cache_write_tokens"]


def _unfinished_text_completion(schemas: Schemas) -> None:
    choice = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = _or_null(choice["finish_reason"])
    schemas["CreateCompletionResponse"]["properties"]["usage"] = _or_null({"$ref": _ref("CompletionUsage")})


def _any_error_code(schemas: Schemas) -> None:
    schemas["ResponseErrorCode"] = {"type": "string"}


def _null_usage(schemas: Schemas) -> None:
    properties = schemas["CreateChatCompletionStreamResponse"]["properties"]
    properties["usage"] = _or_null(properties["usage"])


# Each line is a place where OpenAI's recorded streams break OpenAI's own schema; without it a correct server fails.
ALLOWANCES: dict[str, Callable[[Schemas], None]] = {
    "response.usage is null until the response ends": _null_in_response,
    "response.user is null where none was given": _null_model_properties,
    "response.function_call_arguments.done carries no name": _not_required(
        "ResponseFunctionCallArgumentsDoneEvent", "name"
    ),
    "an error event nests its error object": _nested_error,
    "response.error.code goes beyond the list": _any_error_code,
    "usage.input_tokens_details has no cache_write_tokens": _cache_write_tokens,
    "text_completion chunks carry a null finish_reason and a null usage": _unfinished_text_completion,
    "chat chunks carry a null usage until the last": _null_usage,
}
