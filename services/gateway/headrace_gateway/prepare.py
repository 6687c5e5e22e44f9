"""From a request as it was sent to one that can run: every field checked, the prompt tokenized once, bounds declared.

The caller is known by then; nothing here waits for another service.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import policy_pb2, prefix_chain, response_pb2
from headrace_gateway import bounds
from headrace_gateway.catalog import Catalog, ServedModel
from headrace_gateway.conversation import (
    callable_names,
    check_conversation,
    forced_call_schema,
    forced_names,
    template_messages,
    template_tools,
    written_texts,
)
from headrace_gateway.grammar import MAX_TEXT_BYTES, check_grammar
from headrace_gateway.labels import MAX_NAME_CHARS, check_labels
from headrace_gateway.parsing.model_style import style_of
from headrace_gateway.prepared import Prepared
from headrace_gateway.sampling import check_sampling
from headrace_gateway.text.stop_strings import StopStrings
from headrace_kit.errors import HeadraceError

R = TypeVar("R")
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
_IN_THREAD_BYTES = 16 * 1024  # above this, tokenizing would be felt by the other streams


def check_size(request: pb.GenerateRequest, max_bytes: int) -> None:
    """What can be said before anybody is asked: size, and a model to ask for."""
    if request.ByteSize() > max_bytes:
        raise HeadraceError("too_large", f"the request is over the limit of {max_bytes} bytes", field="request")
    if not request.model or len(request.model) > MAX_NAME_CHARS:
        raise _invalid("model", f"expected a name of 1 to {MAX_NAME_CHARS} characters")


class Preparer:
    """`max_bytes` bounds a request of either protocol."""

    def __init__(self, catalog: Catalog, max_bytes: int) -> None:
        self._catalog, self.max_bytes = catalog, max_bytes

    async def prepare(
        self, request: pb.GenerateRequest, identity: policy_pb2.Identity, deadline_s: float | None
    ) -> Prepared:
        """Raises HeadraceError that names the field."""
        model = self._catalog.find(request.model)
        _check_shape(request, model)
        _force_call(request)
        ids = await _apart(_encode, model, request)
        declared = _declare(request, len(ids), model)
        check_sampling(request.sampling, model.card.vocab_size, declared.max_output_tokens)
        packed = prefix_chain.pack_ids(ids)
        root = self._catalog.chain_root(model, identity)
        slo_class = self._slo_class(request, identity)
        return Prepared(
            request=request,
            identity=identity,
            model=model,
            prompt_ids=packed,
            prompt_text=await _apart(_written, model, request) if identity.screen_input else "",
            bounds=response_pb2.Bounds(
                num_prompt_tokens=declared.num_prompt_tokens,
                max_output_tokens=declared.max_output_tokens,
                n=declared.num_choices,
            ),
            stops=StopStrings(request.stop) if request.stop else None,
            chain_root=root,
            chain=b"".join(prefix_chain.chain(root, packed)),
            slo_class=slo_class,
            session=f"{identity.tenant_digest.hex()}:{request.session_id}" if request.session_id else "",
            client_deadline_s=deadline_s,
            tool_names=callable_names(request.chat),
            statistical=self._catalog.is_statistical(slo_class),
        )

    async def count_tokens(self, request: pb.GenerateRequest, identity: policy_pb2.Identity) -> int:
        """Prompt tokens of a request."""
        model = self._catalog.find(request.model)
        _check_input(request, model)
        return len(await _apart(_encode, model, request))

    def _slo_class(self, request: pb.GenerateRequest, identity: policy_pb2.Identity) -> str:
        if request.slo_class and request.slo_class not in self._catalog.classes:
            known = ", ".join(sorted(self._catalog.classes))
            raise _invalid("slo_class", f"there is no class {request.slo_class[:40]!r}; there are: {known}")
        return request.slo_class or identity.slo_class


async def _apart(
    work: Callable[[ServedModel, pb.GenerateRequest], R], model: ServedModel, request: pb.GenerateRequest
) -> R:
    """In a thread, if it would be felt by the other streams."""
    if request.ByteSize() > _IN_THREAD_BYTES:
        return await asyncio.to_thread(work, model, request)
    return work(model, request)


def _encode(model: ServedModel, request: pb.GenerateRequest) -> list[int]:
    match request.WhichOneof("input"):
        case "chat":
            messages = template_messages(request.chat.messages)
            return model.encoder.chat(messages, template_tools(request.chat), datetime.now())
        case "text":
            return model.encoder.raw(request.text)
        case _:
            return model.encoder.checked(request.tokens.ids, "prompt")


def _declare(request: pb.GenerateRequest, num_prompt: int, model: ServedModel) -> bounds.Bounds:
    max_output = request.max_output_tokens if request.HasField("max_output_tokens") else None
    n = request.n if request.HasField("n") else None
    return bounds.declare(num_prompt, max_output, n, model.limits)


def _check_shape(request: pb.GenerateRequest, model: ServedModel) -> None:
    check_labels(request)
    _check_input(request, model)
    if request.adapter:
        raise _invalid("adapter", "adapters are not served yet")
    if request.HasField("grammar"):
        check_grammar(request.grammar)
    if len(request.stop) > MAX_STOPS:
        raise _invalid("stop", f"at most {MAX_STOPS} strings, got {len(request.stop)}")
    for place, stop in enumerate(request.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise _invalid(f"stop[{place}]", f"must have 1 to {MAX_STOP_CHARS} characters, has {len(stop)}")


def _force_call(request: pb.GenerateRequest) -> None:
    """A call is forced by a grammar, so it needs an engine that serves one."""
    if not forced_names(request.chat):
        return
    if request.HasField("grammar"):
        raise _invalid("tool_choice", "a forced call leaves no room for another format of the text")
    schema = forced_call_schema(request.chat)
    if len(schema.encode()) > MAX_TEXT_BYTES:
        raise _invalid("tools", f"their schemas have more than {MAX_TEXT_BYTES} bytes")
    request.grammar.kind, request.grammar.text = response_pb2.Grammar.KIND_JSON_SCHEMA, schema


def _check_input(request: pb.GenerateRequest, model: ServedModel) -> None:
    match request.WhichOneof("input"):
        case None:
            raise _invalid("input", "one of chat, text and tokens is required")
        case "tokens" if not request.tokens.ids:
            raise _invalid("prompt", "has no tokens")
        case "text" if not request.text:
            raise _invalid("prompt", "is empty")
        case "chat":
            check_conversation(request.chat, takes_tools=style_of(model.encoder).takes_tools)


def _written(model: ServedModel, request: pb.GenerateRequest) -> str:
    """What people wrote, for input rules, whatever they wrote it as."""
    match request.WhichOneof("input"):
        case "chat":
            return "\n".join(written_texts(request.chat))
        case "text":
            return request.text
        case _:
            try:
                return model.tokenizer.decode(list(request.tokens.ids))
            except HeadraceError as error:
                raise _invalid("prompt", error.message) from error


def _invalid(name: str, problem: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{name}: {problem}", field=name)
