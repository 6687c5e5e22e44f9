"""A GenerateRequest from plain Python values; the server checks them. Knows no transport."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import response_pb2

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def build_request(model: str, prompt: Prompt, **options: Any) -> pb.GenerateRequest:
    """``prompt`` is raw text, token ids, or chat messages (mappings with role and content).

    ``options`` are fields of GenerateRequest and of Sampling by their own names (max_output_tokens, n, stop,
    session_id, retry_of, …; temperature, top_p, seed, …). An unknown name is a TypeError.
    """
    request = pb.GenerateRequest(model=model)
    _set_prompt(request, prompt)
    for name, value in options.items():
        _set_option(request, name, value)
    return request


def _set_prompt(request: pb.GenerateRequest, prompt: Prompt) -> None:
    if isinstance(prompt, str):
        request.text = prompt
        return
    ids = [item for item in prompt if isinstance(item, int)]
    messages = [item for item in prompt if isinstance(item, Mapping)]
    if len(ids) + len(messages) != len(prompt) or (ids and messages):
        raise TypeError("a prompt is text, token ids, or messages")
    if ids:
        request.tokens.ids.extend(ids)
    else:
        request.chat.messages.extend(pb.Message(**message) for message in messages)


def _set_option(request: pb.GenerateRequest, name: str, value: Any) -> None:
    owner: Any = request.sampling if name in response_pb2.Sampling.DESCRIPTOR.fields_by_name else request
    field = owner.DESCRIPTOR.fields_by_name.get(name)
    if field is None or name in ("model", "text", "tokens", "chat", "sampling"):
        raise TypeError(f"unknown option {name!r}")
    if value is None:
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(owner, name).update(value)
    elif field.is_repeated:
        getattr(owner, name).extend(value)
    elif field.message_type is not None:
        getattr(owner, name).CopyFrom(value)
    else:
        setattr(owner, name, value)
