"""A request that was checked, authenticated and tokenized: all that a response needs to run."""

from dataclasses import dataclass, field

from headrace.v1 import inference_pb2, policy_pb2, response_pb2
from headrace_gateway.catalog import ServedModel
from headrace_gateway.conversation import forced_names
from headrace_gateway.parsing.llama3 import Llama3Parser
from headrace_gateway.parsing.model_style import style_of
from headrace_gateway.parsing.parts import TextParser
from headrace_gateway.text.stop_strings import StopStrings


@dataclass(frozen=True)
class Prepared:
    """`prompt_ids` are little-endian uint32; `chain` holds the chain values of the prompt's full blocks.

    `rate_limits` is filled by the admission, for headers.
    """

    request: inference_pb2.GenerateRequest
    identity: policy_pb2.Identity
    model: ServedModel
    prompt_ids: bytes
    prompt_text: str
    bounds: response_pb2.Bounds
    stops: StopStrings | None
    chain_root: bytes
    chain: bytes
    slo_class: str
    session: str
    client_deadline_s: float | None
    tool_names: frozenset[str] = frozenset()
    rate_limits: list[policy_pb2.RateLimit] = field(default_factory=list)
    statistical: bool = False

    @property
    def sampling(self) -> response_pb2.Sampling:
        return self.request.sampling

    @property
    def continues_text(self) -> bool:
        """The output continues the prompt's own text: a leading space of its first token is real."""
        return bool(self.request.WhichOneof("input") != "chat")

    def parser(self) -> TextParser | None:
        """A fresh parser for one choice; None where text is only text. A forced call is the whole text."""
        if forced := forced_names(self.request.chat):
            return Llama3Parser(forced)
        return None if self.continues_text else style_of(self.model.encoder).parser(self.tool_names)
