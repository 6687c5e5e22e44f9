"""The API /v1/completions: a text or its tokens, continued."""

from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.answer import Answer
from headrace_gateway.http.api import Asked, Head
from headrace_gateway.http.completions_format import CompletionStream, completion
from headrace_gateway.http.errors import OpenAiErrors
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.known_fields import ADVISORY, KnownFields
from headrace_gateway.http.options import (
    LABEL_NAMES,
    SAMPLING,
    include_usage,
    set_labels,
    set_model,
    set_output_limit,
    set_sampling,
    set_stop,
    token_integer,
)

FIELDS = KnownFields(
    api="completions",
    honoured=SAMPLING
    | {
        "model", "prompt", "max_tokens", "n", "best_of", "stop", "stream", "stream_options", "logprobs", "metadata",
        "prompt_cache_key",
    },
    advisory=ADVISORY,
    refused={"suffix", "echo", "grammar", "adapter", "response_format", "tools"},
)  # fmt: skip


class CompletionsApi(OpenAiErrors):
    """Completions, as OpenAI has them."""

    name = "completions"

    def parse(self, body: Fields) -> Asked:
        FIELDS.check(body)
        request = pb.GenerateRequest()
        set_model(request, body)
        _set_prompt(request, body)
        set_output_limit(request, body, "max_tokens")
        _set_choices(request, body)
        set_sampling(request, body)
        if (top := body.integer("logprobs")) is not None:
            request.sampling.logprobs = True
            request.sampling.top_logprobs = top
        set_stop(request, body, "stop")
        set_labels(request, body)
        stream = body.boolean("stream") or False
        names = {"max_output_tokens": "max_tokens", "top_logprobs": "logprobs", **LABEL_NAMES}
        return Asked(request, stream, include_usage(body, stream), names)

    def stream(self, head: Head, asked: Asked) -> CompletionStream:
        return CompletionStream(head, asked)

    def whole(self, head: Head, asked: Asked, answer: Answer) -> dict[str, Any]:
        return completion(head, answer)


def _set_prompt(request: pb.GenerateRequest, body: Fields) -> None:
    """A text, its token ids, or an array with one of these."""
    prompt = body.raw("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise invalid("prompt", "several prompts in one request are not served; send one request for each")
        prompt = prompt[0]
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, list):
        request.tokens.ids.extend(token_integer(token_id, "prompt") for token_id in prompt)
        request.tokens.SetInParent()
    else:
        raise invalid("prompt", "expected a string or an array of token ids")


def _set_choices(request: pb.GenerateRequest, body: Fields) -> None:
    n, best_of = body.integer("n"), body.integer("best_of")
    if n is not None:
        request.n = n
    if best_of is not None and best_of != (1 if n is None else n):
        raise invalid("best_of", "only as many as n are served")
