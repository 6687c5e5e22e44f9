"""Channels to the services that the control plane asks on behalf of operators. Knows no question."""

import asyncio

import grpc

from headrace_kit import channels
from headrace_kit.channels import Tls


class Peers:
    """One channel per endpoint, kept until ``close``."""

    def __init__(self, token: str, tls: Tls | None) -> None:
        self._token, self._tls = token, tls
        self._channels: dict[str, grpc.aio.Channel] = {}

    def channel(self, endpoint: str, service: str) -> grpc.aio.Channel:
        """To whoever answers there, who has to be that service where TLS can prove it."""
        if endpoint not in self._channels:
            self._channels[endpoint] = channels.connect(endpoint, token=self._token, peer=service, tls=self._tls)
        return self._channels[endpoint]

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()


async def is_gone(endpoint: str, limit_s: float = 2.0) -> bool:
    """Whether nobody listens there any more. A process that was stopped, or a host that is away, refuses nothing."""
    host, _, port = endpoint.rpartition("/")[2].rpartition(":")
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, TimeoutError):
        return False
    writer.close()
    return False
