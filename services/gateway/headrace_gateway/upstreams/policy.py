"""Calls to policy: identity, reservation, renewal, settlement. Every call has a deadline and a typed failure."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from typing import Any

import grpc

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import policy_pb2_grpc
from headrace_kit.errors import HeadraceError, from_rpc_error

AUTHENTICATE_S = 2.0
ADMIT_S = 2.0
SETTLE_S = 5.0
_MAX_CACHED = 10_000
# In words: written as it is sent it would be taken for a secret, and blanked.
_NO_KEY = "the request carries no API key: send Bearer, a space and the key in the header Authorization"


class PolicyClient:
    """One channel to policy. Identities are kept for as long as policy says, under a digest of the credential."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = policy_pb2_grpc.PolicyStub(channel)
        self._identities: OrderedDict[bytes, tuple[float, pb.Identity]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[pb.Identity]] = {}

    async def authenticate(self, credential: str, model: str = "") -> pb.Identity:
        """Raises unauthenticated, permission_denied, model_not_found or policy_unavailable."""
        if not credential:
            raise HeadraceError("unauthenticated", _NO_KEY)
        digest = hashlib.blake2b(f"{model}\0{credential}".encode("utf-8", "replace"), digest_size=16).digest()
        kept = self._identities.get(digest)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        asking = self._asking.get(digest)
        if asking is None:  # those who come meanwhile wait for the same answer
            request = pb.AuthenticateRequest(credential=credential, model=model)
            asking = self._asking[digest] = asyncio.create_task(self._ask(digest, request))
            asking.add_done_callback(lambda _: self._asking.pop(digest))
        return await asyncio.shield(asking)

    async def _ask(self, digest: bytes, request: pb.AuthenticateRequest) -> pb.Identity:
        identity: pb.Identity = await _call(self._stub.Authenticate, request, AUTHENTICATE_S)
        self._keep(digest, identity)
        return identity

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        """One reservation; raises HeadraceError when policy cannot answer."""
        answer: pb.AdmitResponse = await _call(self._stub.Admit, request, ADMIT_S)
        return answer

    async def renew(self, request: pb.RenewRequest) -> pb.RenewResponse:
        answer: pb.RenewResponse = await _call(self._stub.Renew, request, SETTLE_S)
        return answer

    async def settle(self, request: pb.SettleRequest) -> pb.SettleResponse:
        """Idempotent by response id."""
        answer: pb.SettleResponse = await _call(self._stub.Settle, request, SETTLE_S)
        return answer

    def screen(self, requests: "asyncio.Queue[pb.ScreenRequest]") -> Any:
        """The multiplexed screening stream."""
        return self._stub.Screen(_drawn(requests))

    def _keep(self, digest: bytes, identity: pb.Identity) -> None:
        if identity.cache_s <= 0:
            return
        self._identities[digest] = (time.monotonic() + identity.cache_s, identity)
        while len(self._identities) > _MAX_CACHED:
            self._identities.popitem(last=False)


async def _drawn(requests: "asyncio.Queue[pb.ScreenRequest]") -> Any:
    while True:
        yield await requests.get()


async def _call(method: Any, request: Any, timeout_s: float) -> Any:
    try:
        return await method(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, fallback="policy_unavailable") from error
