"""What an HTTP API has to say for itself: how a body becomes a request, and how a response is written.

One `Endpoint` serves any of them over the same sessions; none of them holds a rule of the contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.answer import Answer
from headrace_gateway.http.errors import ErrorForm
from headrace_gateway.http.fields import Fields
from headrace_gateway.parsed_stream import ParsedEvent


@dataclass(frozen=True)
class Asked:
    """A parsed body. `names` maps fields of GenerateRequest to this API's names; `echoed` is repeated in the answer."""

    generate: pb.GenerateRequest
    stream: bool
    include_usage: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    echoed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Head:
    """What everything written of one response has in common."""

    response_id: str
    model: str
    created_at_s: int
    num_choices: int
    num_prompt_tokens: int


class StreamForm(Protocol):
    """Writes one stream. `keep_alive` may be sent between any two events."""

    keep_alive: bytes

    def opening(self) -> bytes:
        """What stands for `created`; may be empty."""
        ...

    def written(self, event: ParsedEvent) -> bytes:
        """One event after `created`; may be empty."""
        ...


class Api(ErrorForm, Protocol):
    """One API. `name` labels metrics."""

    name: str

    def parse(self, body: Fields) -> Asked:
        """Raises invalid_argument that names the field."""
        ...

    def stream(self, head: Head, asked: Asked) -> StreamForm: ...

    def whole(self, head: Head, asked: Asked, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is not streamed and ended completed or incomplete."""
        ...
