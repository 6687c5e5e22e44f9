"""The one path of every request, whatever protocol it came by: authenticate, prepare, open a session."""

import secrets
from time import monotonic

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import policy_pb2, worker_pb2
from headrace_gateway.arrival import Arrival
from headrace_gateway.catalog import Catalog
from headrace_gateway.conversation import forced_names
from headrace_gateway.labels import check_length
from headrace_gateway.lifecycle import Terms
from headrace_gateway.meter import UNKNOWN_MODEL, count_refusal
from headrace_gateway.prepare import Preparer, check_size
from headrace_gateway.services import Services
from headrace_gateway.session import Session
from headrace_kit import tracing
from headrace_kit.errors import HeadraceError


class Front:
    """Opens responses and answers about models. Adapters translate to it and from it."""

    def __init__(self, services: Services, catalog: Catalog, preparer: Preparer, max_total_s: float) -> None:
        self._services, self._catalog, self._preparer = services, catalog, preparer
        self._max_total_s = max_total_s
        self.draining = False

    async def open(
        self, request: pb.GenerateRequest, credential: str, deadline_s: float | None, arrival: Arrival
    ) -> Session:
        """A session that has not begun; raises HeadraceError. `deadline_s` is what the client's call allows."""
        try:
            return await self._open(request, credential, deadline_s, arrival)
        except HeadraceError as error:
            self.refused(error, request.model)
            raise

    def refused(self, error: HeadraceError, model: str = "") -> None:
        """A request that ends before it is a response; for those, too, that never came to `open`."""
        count_refusal(self._catalog.resolve(model) or UNKNOWN_MODEL, error.reason)

    async def _open(
        self, request: pb.GenerateRequest, credential: str, deadline_s: float | None, arrival: Arrival
    ) -> Session:
        if self.draining:
            raise HeadraceError("draining", "this gateway is stopping", retry_after_s=1.0)
        check_size(request, self._preparer.max_bytes)
        gate = arrival.root.child()
        with tracing.entered(gate):
            identity = await self._services.policy.authenticate(credential, request.model)
            authenticated_at = monotonic()
            prepared = await self._preparer.prepare(request, identity, deadline_s)
        terms = Terms(
            num_choices=prepared.bounds.n,
            num_prompt_tokens=prepared.bounds.num_prompt_tokens,
            total_s=self._max_total_s,
            client_deadline_s=deadline_s,
        )
        session = Session(f"resp_{secrets.token_hex(12)}", prepared, self._services, terms, arrival)
        session.opened(gate, authenticated_at)
        return session

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Origins that a browser may call from."""
        return self._catalog.cors_origins

    async def identify(self, credential: str) -> policy_pb2.Identity:
        """Who is calling, for calls that name no model."""
        return await self._services.policy.authenticate(credential)

    async def cancel(self, response_id: str, credential: str) -> bool:
        """Ends a response of the caller's tenant: here, or at whichever gateway has it, through the workers."""
        check_length("response_id", response_id)
        identity = await self.identify(credential)
        session = self._services.sessions.find(response_id, identity.tenant_digest)
        if session is not None:
            session.leave("client")
            return True
        elsewhere = worker_pb2.Cancel(
            response_id=response_id, choice=-1, reason="client", tenant_digest=identity.tenant_digest
        )
        for link in self._services.workers.live_links:
            link.cancel(elsewhere)
        return False

    async def models(self, credential: str) -> list[pb.Model]:
        """The models that the caller may name, aliases too."""
        identity = await self.identify(credential)
        allowed = set(identity.models)
        listed = []
        for model in self._catalog.models():
            if allowed and not allowed & {model.name, *model.aliases}:
                continue
            num_ready = self._services.workers.num_ready(model.name)
            listed += [model.describe(name, num_ready) for name in (model.name, *model.aliases)]
        return sorted(listed, key=lambda one: one.id)

    async def count_tokens(self, request: pb.GenerateRequest, credential: str) -> int:
        """Prompt tokens of a request, through the same template and tokenizer that would run it."""
        check_size(request, self._preparer.max_bytes)
        identity = await self._services.policy.authenticate(credential, request.model)
        return await self._preparer.count_tokens(request, identity)


def named(error: HeadraceError, request: pb.GenerateRequest) -> HeadraceError:
    """The router knows only that no replica has the features; the request says which field asked for them."""
    if error.field != "features":
        return error
    name = "grammar" if request.HasField("grammar") else "logprobs"
    if forced_names(request.chat):
        name = "tool_choice"
    return HeadraceError("invalid_argument", f"{name}: no engine of this model serves it", field=name)
