"""Channels to the services that the control plane asks on behalf of operators. Knows no question."""

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
