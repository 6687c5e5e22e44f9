"""What the HTTP APIs take, as JSON schemas: one for each field that is honoured, with the limits that the code has.

Which API has which field is the gateway's to say; a field without a schema here is an error.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from headrace_gateway import sampling
from headrace_gateway.bounds import MAX_CHOICES
from headrace_gateway.conversation import MAX_CALLS, MAX_MESSAGES, MAX_TOOL_NAME_CHARS, MAX_TOOLS
from headrace_gateway.http.known_fields import KnownFields
from headrace_gateway.labels import MAX_METADATA, MAX_METADATA_CHARS, MAX_NAME_CHARS
from headrace_gateway.prepare import MAX_STOP_CHARS, MAX_STOPS

Schema: TypeAlias = dict[str, Any]


def optional(schema: Schema) -> Schema:
    """The same, or null: null is absent."""
    kind = schema.get("type")
    return {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"anyOf": [schema, {"type": "null"}]}


def text(**limits: Any) -> Schema:
    return {"type": "string", **limits}


def array(items: Schema, **limits: Any) -> Schema:
    return {"type": "array", "items": items, **limits}


def record(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _in_range(name: str) -> Schema:
    lowest, highest = sampling.RANGES[name]
    kind = "integer" if isinstance(lowest, int) else "number"
    return {"type": kind, "minimum": lowest, "maximum": highest}


NAME = text(minLength=1, maxLength=MAX_NAME_CHARS)
LABEL = text(maxLength=MAX_NAME_CHARS)
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0}
OUTPUT_LIMIT: Schema = {"type": "integer", "minimum": 1}
STOP = text(minLength=1, maxLength=MAX_STOP_CHARS)
STOPS = array(STOP, maxItems=MAX_STOPS)
TOOL_NAME = text(minLength=1, maxLength=MAX_TOOL_NAME_CHARS)
FUNCTION = {
    "name": TOOL_NAME,
    "description": optional(text()),
    "parameters": optional({**OBJECT, "description": "A JSON schema."}),
    "strict": optional({**BOOLEAN, "description": "Without effect."}),
}


def parts(*kinds: str) -> Schema:
    """A text, or an array of text parts."""
    return {"anyOf": [text(), array(record(("type", "text"), type={"enum": list(kinds)}, text=text()))]}


CALL = record(
    ("function",),
    id=optional(LABEL),
    type=optional({"const": "function"}),
    function=record(("name",), name=NAME, arguments=optional(text(description="A JSON object, as text."))),
)
CHAT_MESSAGE: Schema = {
    "oneOf": [
        record(
            ("role",),
            role={"const": "assistant"},
            content=optional(parts("text")),
            name=optional(LABEL),
            tool_calls=optional(array(CALL, maxItems=MAX_CALLS)),
        ),
        record(
            ("role", "content"),
            role={"enum": ["system", "developer", "user", "tool"]},
            content=parts("text"),
            name=optional(LABEL),
            tool_call_id=optional(LABEL),
        ),
    ]
}
FORMAT: Schema = {
    "oneOf": [
        record(("type",), type={"enum": ["text", "json_object"]}),
        record(("type", "json_schema"), type={"const": "json_schema"}, json_schema=record(("schema",), schema=OBJECT)),
    ]
}
FLAT_FORMAT: Schema = {
    "oneOf": [
        record(("type",), type={"enum": ["text", "json_object"]}),
        record(("type", "schema"), type={"const": "json_schema"}, schema=OBJECT),
    ]
}
CHOICE_WORDS: Schema = {"enum": ["none", "auto", "required"]}

SHARED: Mapping[str, Schema] = {
    "model": NAME,
    "stream": optional(BOOLEAN),
    **{name: optional(_in_range(name)) for name in ("temperature", "top_p", "min_p", "top_k")},
    **{name: optional(_in_range(name)) for name in ("presence_penalty", "frequency_penalty")},
    "repetition_penalty": optional({"type": "number", "exclusiveMinimum": 0, "maximum": sampling.MAX_REPETITION}),
    "seed": optional({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}),
    "min_tokens": optional({"type": "integer", "minimum": 0}),
    "ignore_eos": optional(BOOLEAN),
    "stop_token_ids": optional(array(TOKEN_ID, maxItems=sampling.MAX_STOP_IDS)),
    "logit_bias": optional(
        {
            "type": "object",
            "propertyNames": text(pattern="^[0-9]{1,18}$"),
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": sampling.MAX_BIASES,
        }
    ),
    "metadata": optional(
        {
            "type": "object",
            "propertyNames": text(minLength=1, maxLength=MAX_METADATA_CHARS),
            "additionalProperties": text(maxLength=MAX_METADATA_CHARS),
            "maxProperties": MAX_METADATA,
            "description": "The key retry_of names the failed response that this one replaces.",
        }
    ),
    "prompt_cache_key": optional(LABEL),
    "stream_options": optional(record(include_usage=optional(BOOLEAN), include_obfuscation=optional(BOOLEAN))),
    "n": optional({"type": "integer", "minimum": 1, "maximum": MAX_CHOICES}),
    "stop": {"anyOf": [STOP, STOPS, {"type": "null"}]},
    "top_logprobs": optional({"type": "integer", "minimum": 0, "maximum": sampling.MAX_TOP_LOGPROBS}),
}
CHAT: Mapping[str, Schema] = {
    "messages": array(CHAT_MESSAGE, minItems=1, maxItems=MAX_MESSAGES),
    "max_tokens": optional(OUTPUT_LIMIT),
    "max_completion_tokens": optional(OUTPUT_LIMIT),
    "logprobs": optional(BOOLEAN),
    "tools": optional(
        array(record(("type", "function"), type={"const": "function"}, function=record(("name",), **FUNCTION)),
              maxItems=MAX_TOOLS)
    ),
    "tool_choice": {
        "anyOf": [
            CHOICE_WORDS,
            record(("type", "function"), type={"const": "function"}, function=record(("name",), name=TOOL_NAME)),
            {"type": "null"},
        ]
    },
    "response_format": optional(FORMAT),
    "modalities": optional(array({"const": "text"}, maxItems=1)),
}  # fmt: skip
PROMPT_TOKENS = array(TOKEN_ID, minItems=1)
COMPLETIONS: Mapping[str, Schema] = {
    "prompt": {
        "anyOf": [
            text(minLength=1),
            PROMPT_TOKENS,
            array({"anyOf": [text(minLength=1), PROMPT_TOKENS]}, minItems=1, maxItems=1),
        ]
    },
    "max_tokens": optional(OUTPUT_LIMIT),
    "best_of": optional({"type": "integer", "description": "As many as n."}),
    "logprobs": optional({"type": "integer", "minimum": 0, "maximum": sampling.MAX_TOP_LOGPROBS}),
}
INPUT_ITEM: Schema = {
    "oneOf": [
        record(
            ("role", "content"),
            type=optional({"const": "message"}),
            role={"enum": ["system", "developer", "user", "assistant"]},
            content=parts("input_text", "output_text", "text"),
        ),
        record(
            ("type", "call_id", "name"),
            type={"const": "function_call"},
            call_id=NAME,
            name=NAME,
            arguments=optional(text(description="A JSON object, as text.")),
        ),
        record(
            ("type", "call_id", "output"),
            type={"const": "function_call_output"},
            call_id=NAME,
            output=parts("input_text", "output_text", "text"),
        ),
        record(("type",), type={"const": "reasoning"}),
    ]
}
RESPONSES: Mapping[str, Schema] = {
    "input": {"anyOf": [text(), array(INPUT_ITEM, minItems=1)]},
    "instructions": optional(text()),
    "max_output_tokens": optional(OUTPUT_LIMIT),
    "tools": optional(array(record(("type", "name"), type={"const": "function"}, **FUNCTION), maxItems=MAX_TOOLS)),
    "tool_choice": {
        "anyOf": [
            CHOICE_WORDS,
            record(("type", "name"), type={"const": "function"}, name=TOOL_NAME),
            {"type": "null"},
        ]
    },
    "text": optional(record(format=optional(FLAT_FORMAT))),
    "include": optional(array(text())),
    "truncation": optional({"const": "disabled"}),
}
TURN: Schema = record(
    ("role", "content"),
    role={"enum": ["user", "assistant"]},
    content={
        "anyOf": [
            text(),
            array(
                {
                    "oneOf": [
                        record(("type", "text"), type={"const": "text"}, text=text()),
                        record(
                            ("type", "name"),
                            type={"const": "tool_use"},
                            id=optional(LABEL),
                            name=NAME,
                            input=optional(OBJECT),
                        ),
                        record(
                            ("type", "tool_use_id"),
                            type={"const": "tool_result"},
                            tool_use_id=NAME,
                            content=optional(parts("text")),
                        ),
                        record(("type",), type={"enum": ["thinking", "redacted_thinking"]}),
                    ]
                }
            ),
        ]
    },
)
MESSAGES: Mapping[str, Schema] = {
    "messages": array(TURN, minItems=1, maxItems=MAX_MESSAGES),
    "system": optional(parts("text")),
    "max_tokens": OUTPUT_LIMIT,
    "stop_sequences": optional(STOPS),
    "tools": optional(
        array(
            record(
                ("name", "input_schema"),
                type=optional({"const": "custom"}),
                name=TOOL_NAME,
                description=optional(text()),
                input_schema=OBJECT,
            ),
            maxItems=MAX_TOOLS,
        )
    ),
    "tool_choice": optional(
        {
            "oneOf": [
                record(("type",), type={"enum": ["auto", "none", "any"]}),
                record(("type", "name"), type={"const": "tool"}, name=TOOL_NAME),
            ]
        }
    ),
}


def body(fields: KnownFields, own: Mapping[str, Schema], required: tuple[str, ...]) -> Schema:
    """The body of one API: every honoured field, those without effect, and those that have to be empty."""
    schemas = {**SHARED, **own}
    properties = {name: schemas[name] for name in sorted(fields.honoured)}
    unused = set(own) - fields.honoured
    assert not unused, f"{fields.api} has no {unused}"
    for name in sorted(fields.advisory):
        properties[name] = {"description": "Accepted, without effect."}
    for name in sorted(fields.refused):
        properties[name] = {"enum": [None, False, "", [], {}], "description": "Not served."}
    return {"type": "object", "properties": properties, "required": list(required)}
