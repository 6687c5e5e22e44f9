"""Fields that several APIs share, read into a GenerateRequest."""

import json
from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import response_pb2
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.json_text import compact

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
INTEGERS = ("top_k", "seed", "min_tokens")
SAMPLING = frozenset({*NUMBERS, *INTEGERS, "ignore_eos", "stop_token_ids", "logit_bias"})
"""Names of what `set_sampling` reads."""
LABEL_NAMES = {
    "session_id": "prompt_cache_key",
    "retry_of": "metadata.retry_of",
    "slo_class": "x-headrace-class",
}
"""Fields of GenerateRequest as callers know them: where `set_labels` reads them in bodies, or a header."""


def set_model(request: pb.GenerateRequest, body: Fields) -> None:
    request.model = body.text("model") or ""
    if not request.model:
        raise invalid("model", "is required")


def set_sampling(request: pb.GenerateRequest, body: Fields) -> None:
    sampling = request.sampling
    for name in NUMBERS:
        if (number := body.number(name)) is not None:
            setattr(sampling, name, number)
    for name in INTEGERS:
        if (integer := body.integer(name)) is not None:
            setattr(sampling, name, integer)
    sampling.ignore_eos = body.boolean("ignore_eos") or False
    for at, token_id in enumerate(body.items("stop_token_ids") or []):
        sampling.stop_token_ids.append(token_integer(token_id, f"stop_token_ids[{at}]"))
    if (bias := body.object("logit_bias")) is not None:
        for name in bias.content:
            if (number := bias.number(name)) is None:
                raise invalid(bias.where(name), "expected a finite number")
            sampling.logit_bias[_token_id(bias, name)] = number


def token_integer(value: Any, path: str) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise invalid(path, "expected an integer")
    return value


def _token_id(bias: Fields, name: str) -> int:
    if not (name.removeprefix("-").isdecimal() and name.isascii() and len(name) < 19):
        raise invalid(bias.where(name[:40]), "expected a token id")
    return int(name)


def set_output_limit(request: pb.GenerateRequest, body: Fields, name: str) -> None:
    limit = body.integer(name)
    if limit is None:
        return
    if limit < 1:
        raise invalid(name, "must be at least 1")
    request.max_output_tokens = limit


def set_stop(request: pb.GenerateRequest, body: Fields, name: str) -> None:
    """One string or an array of strings."""
    stop = body.raw(name)
    if isinstance(stop, str):
        request.stop.append(stop)
        return
    for at, item in enumerate(body.items(name) or []):
        if not isinstance(item, str):
            raise invalid(f"{name}[{at}]", "expected a string")
        request.stop.append(item)


def set_labels(request: pb.GenerateRequest, body: Fields) -> None:
    """Affinity, and `metadata`."""
    request.session_id = body.text("prompt_cache_key") or ""
    set_metadata(request, body)


def set_metadata(request: pb.GenerateRequest, body: Fields) -> None:
    """`metadata` travels with the response; its key `retry_of` names the failed response that this one replaces."""
    metadata = body.object("metadata")
    if metadata is None:
        return
    for name in metadata.content:
        if (value := metadata.text(name)) is None:
            raise invalid(metadata.where(name), "expected a string")
        if name == "retry_of":
            request.retry_of = value
        else:
            request.metadata[name] = value


def set_grammar(request: pb.GenerateRequest, form: Fields, schema: Any) -> None:
    """The text format of an answer; `schema` is where this API keeps the schema of a json_schema."""
    match form.text("type"):
        case "text" | None:
            pass
        case "json_object":
            request.grammar.kind = response_pb2.Grammar.KIND_JSON_OBJECT
        case "json_schema":
            if not isinstance(schema, dict):
                raise invalid(form.where("schema"), "expected an object")
            request.grammar.kind = response_pb2.Grammar.KIND_JSON_SCHEMA
            request.grammar.text = compact(schema)
        case _:
            raise invalid(form.where("type"), "expected text, json_object or json_schema")


def include_usage(body: Fields, stream: bool) -> bool:
    """`stream_options`; obfuscation of streams is accepted and without effect."""
    options = body.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "is only for streams")
    options.boolean("include_obfuscation")
    return options.boolean("include_usage") or False


def as_object(item: Any, path: str) -> Fields:
    """An element of an array that has to be an object."""
    if not isinstance(item, dict):
        raise invalid(path, "expected an object")
    return Fields(item, path)


def json_object_text(fields: Fields, name: str) -> str:
    """A text that holds a JSON object, or nothing."""
    text = fields.text(name) or ""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise invalid(fields.where(name), "is not JSON") from None
    if not isinstance(value, dict):
        raise invalid(fields.where(name), "expected a JSON object")
    return text
