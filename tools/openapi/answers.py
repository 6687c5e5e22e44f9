"""What the HTTP APIs answer, as JSON schemas: what a client may rely on, not every field there is."""

from collections.abc import Mapping

from headrace_kit.errors import REASONS
from tools.openapi.bodies import BOOLEAN, OBJECT, Schema, array, optional, record, text

COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FINISH_REASON: Schema = {"enum": sorted(name for name, row in REASONS.items() if row.phase == "choice")}
ROUTE_CODES = ("not_found", "method_not_allowed")
CODE: Schema = {"enum": sorted(name for name, row in REASONS.items() if row.phase != "choice") + list(ROUTE_CODES)}
CALL = record(
    ("id", "type", "function"),
    id=text(),
    type={"const": "function"},
    function=record(("name", "arguments"), name=text(), arguments=text()),
)


def whole(**properties: Schema) -> Schema:
    """An object that always has all of these."""
    return record(tuple(properties), **properties)


USAGE = record(
    ("prompt_tokens", "completion_tokens", "total_tokens"),
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=whole(cached_tokens=COUNT),
    completion_tokens_details=whole(reasoning_tokens=COUNT),
)
COMPLETION_HEAD: Mapping[str, Schema] = {"id": text(), "created": COUNT, "model": text(), "usage": USAGE}

SCHEMAS: Mapping[str, Schema] = {
    "OpenAiError": whole(
        error=record(
            ("message", "type", "param", "code"),
            message=text(),
            type=text(),
            param=optional(text()),
            code=CODE,
            response_id=text(),
        )
    ),
    "AnthropicError": whole(
        type={"const": "error"},
        error=record(
            ("type", "message", "code"),
            type=text(),
            message=text(),
            code=CODE,
            param=optional(text()),
            response_id=text(),
        ),
    ),
    "ServerSentEvent": {
        **record(("data",), event=text(), data=text(), id=text()),
        "description": "One event of the stream; `data` is JSON, but for a last `[DONE]` of OpenAI's.",
    },
    "ChatCompletion": whole(
        **COMPLETION_HEAD,
        object={"const": "chat.completion"},
        choices=array(
            whole(
                index=COUNT,
                message=record(
                    ("role", "content"),
                    role={"const": "assistant"},
                    content=optional(text()),
                    reasoning_content=text(),
                    tool_calls=array(CALL, minItems=1),
                ),
                logprobs=optional(whole(content=array(OBJECT))),
                finish_reason=FINISH_REASON,
            ),
            minItems=1,
        ),
    ),
    "Completion": whole(
        **COMPLETION_HEAD,
        object={"const": "text_completion"},
        choices=array(
            whole(index=COUNT, text=text(), logprobs=optional(OBJECT), finish_reason=FINISH_REASON), minItems=1
        ),
    ),
    "Response": whole(
        id=text(),
        object={"const": "response"},
        created_at=COUNT,
        model=text(),
        status={"enum": ["completed", "incomplete"]},
        error={"type": "null"},
        incomplete_details=optional(whole(reason={"enum": ["max_output_tokens", "content_filter"]})),
        output=array(whole(id=text(), type={"enum": ["message", "reasoning", "function_call"]}, status=text())),
        usage=whole(input_tokens=COUNT, output_tokens=COUNT, total_tokens=COUNT),
        store={"const": False},
        temperature=NUMBER,
        top_p=NUMBER,
        tools=array(OBJECT),
        metadata=OBJECT,
        parallel_tool_calls=BOOLEAN,
    ),
    "Message": whole(
        id=text(),
        type={"const": "message"},
        role={"const": "assistant"},
        model=text(),
        content=array(whole(type={"enum": ["text", "thinking", "tool_use"]})),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]},
        stop_sequence=optional(text()),
        usage=whole(input_tokens=COUNT, output_tokens=COUNT, cache_read_input_tokens=COUNT),
    ),
    "InputTokens": whole(input_tokens=COUNT),
    "Model": whole(
        id=text(),
        object={"const": "model"},
        created=COUNT,
        owned_by=text(),
        max_context_tokens=COUNT,
        chat=BOOLEAN,
        num_ready_replicas=COUNT,
    ),
    "ModelList": whole(object={"const": "list"}, data=array({"$ref": "#/components/schemas/Model"})),
}
