"""Calls to a platform's control plane with its admin key."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from headrace.v1 import fleet_pb2 as pb
from headrace.v1 import fleet_pb2_grpc
from headrace_cli.platform import remote
from headrace_cli.platform.remote import Remote
from headrace_cli.platform.state_dir import CommandError, StateDir
from headrace_kit.channels import connect
from headrace_kit.errors import HeadraceError, from_rpc_error

ADMIN_KEY_HEADER = "x-headrace-admin-key"
TIMEOUT_S = 10.0


class ControlPlaneAway(CommandError):
    """It does not answer; one that is restarted is back within seconds."""


class Admin:
    """The Admin service of one platform; use it as an async context manager."""

    def __init__(self, state: StateDir) -> None:
        at = remote.find(state.root) or _local(state)
        self._target = at.controlplane
        token, key = state.read_secret(at.service_token_file), state.read_secret(at.admin_key_file)
        self._channel = connect(at.controlplane, token=token, peer="controlplane", tls=at.tls)
        self._metadata = ((ADMIN_KEY_HEADER, key),)
        self.stub = fleet_pb2_grpc.AdminStub(self._channel)

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def call(self, method: Callable[..., Any], request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """One unary call; raises HeadraceError, or ControlPlaneAway if nobody answers."""
        try:
            return await method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._told(error) from error

    async def stream(self, method: Callable[..., Any], request: Any, timeout_s: float) -> AsyncIterator[Any]:
        """One streaming call; raises as ``call`` does."""
        try:
            async for item in method(request, timeout=timeout_s, metadata=self._metadata):
                yield item
        except grpc.RpcError as error:
            raise self._told(error) from error

    def _told(self, error: grpc.RpcError) -> HeadraceError | ControlPlaneAway:
        """What it said, or that it said nothing: that is no error of ours, and goes away when it is back."""
        told = from_rpc_error(error, fallback="internal")
        code = told.details.get("grpc_code")
        if told.reason == "internal" and code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            how = "did not answer in time" if code == "DEADLINE_EXCEEDED" else "does not answer"
            return ControlPlaneAway(
                f"unavailable: the control plane at {self._target} {how}: it is starting, stopped or busy; "
                "try again, or see headrace status and headrace logs controlplane"
            )
        return told

    async def replicas(self) -> list[pb.Replica]:
        """Every replica of the registry."""
        answer = await self.call(self.stub.ListReplicas, pb.ListReplicasRequest())
        return list(answer.replicas)

    async def fleet_yaml(self) -> str:
        """The newest fleet file."""
        answer = await self.call(self.stub.Show, pb.ShowRequest())
        return str(answer.fleet_yaml)

    async def snapshot_version(self) -> int:
        """The newest version."""
        answer = await self.call(self.stub.History, pb.HistoryRequest(limit=1))
        return int(answer.entries[0].version) if answer.entries else 0


def _local(state: StateDir) -> Remote:
    announced = state.announced("controlplane")
    if announced is None:
        raise CommandError(f"no control plane runs in {state.root} (start it with: headrace up)")
    return Remote(
        controlplane=announced["grpc"], service_token_file=state.service_token, admin_key_file=state.admin_key
    )
