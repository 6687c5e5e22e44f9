"""A body of /v1/responses as a GenerateRequest, and what of it the response object repeats."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.api import Asked
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.known_fields import ADVISORY, KnownFields
from headrace_gateway.http.options import (
    LABEL_NAMES,
    SAMPLING,
    include_usage,
    set_grammar,
    set_labels,
    set_model,
    set_output_limit,
    set_sampling,
)
from headrace_gateway.http.responses.items import read_input
from headrace_gateway.http.tools import set_tools

FIELDS = KnownFields(
    api="responses",
    honoured=SAMPLING
    | {
        "model", "input", "instructions", "max_output_tokens", "stream", "stream_options", "tools", "tool_choice",
        "text", "top_logprobs", "include", "metadata", "prompt_cache_key", "truncation",
    },
    advisory=ADVISORY | {"reasoning"},
    refused={
        "previous_response_id", "conversation", "background", "prompt", "max_tool_calls", "context_management", "n",
        "grammar", "adapter",
    },
)  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_NOTHING_TO_INCLUDE = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip


def parse_response(body: Fields) -> Asked:
    """Raises invalid_argument that names the field."""
    FIELDS.check(body)
    request = pb.GenerateRequest()
    set_model(request, body)
    instructions = body.text("instructions")
    if instructions:
        request.chat.messages.add(role="system", content=instructions)
    request.chat.messages.extend(read_input(body))
    set_tools(request.chat, body, flat=True)
    set_output_limit(request, body, "max_output_tokens")
    set_sampling(request, body)
    set_labels(request, body)
    _set_logprobs(request, body)
    _set_text(request, body)
    if body.text("truncation") not in (None, "disabled"):
        raise invalid("truncation", "only disabled is served: a prompt is never cut")
    stream = body.boolean("stream") or False
    include_usage(body, stream)
    names = {"grammar": "text.format", "prompt": "input", "messages": "input", **LABEL_NAMES}
    return Asked(request, stream, names=names, echoed=_echoed(body, request))


def _set_logprobs(request: pb.GenerateRequest, body: Fields) -> None:
    for at, item in enumerate(body.items("include") or []):
        if item == _LOGPROBS:
            request.sampling.logprobs = True
        elif item not in _NOTHING_TO_INCLUDE:
            raise invalid(f"include[{at}]", f"{str(item)[:60]!r} is nothing that a response here has")
    top = body.integer("top_logprobs")
    if top is not None:
        request.sampling.logprobs = request.sampling.logprobs or top > 0
        request.sampling.top_logprobs = top


def _set_text(request: pb.GenerateRequest, body: Fields) -> None:
    text = body.object("text")
    if text is not None and (form := text.object("format")) is not None:
        set_grammar(request, form, form.raw("schema"))


def _echoed(body: Fields, request: pb.GenerateRequest) -> dict[str, Any]:
    """Fields that a response object has whatever became of it; what was not said is as the API's default has it."""
    sampling = request.sampling
    text = body.raw("text") or {}
    reasoning = body.raw("reasoning")
    reasoning = reasoning if isinstance(reasoning, dict) else {}
    return {
        "background": False,
        "instructions": body.text("instructions"),
        "max_output_tokens": request.max_output_tokens if request.HasField("max_output_tokens") else None,
        "max_tool_calls": None,
        "metadata": body.raw("metadata") or {},
        "parallel_tool_calls": body.raw("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature if sampling.HasField("temperature") else 1.0,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": body.raw("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in body.raw("tools") or []],
        "top_logprobs": sampling.top_logprobs,
        "top_p": sampling.top_p if sampling.HasField("top_p") else 1.0,
        "truncation": "disabled",
        "user": body.text("user"),
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None, **tool}
