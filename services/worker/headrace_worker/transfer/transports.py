"""The ways to travel that there are, by the name that the configuration and the wire use."""

from __future__ import annotations

from headrace_worker.transfer.inline import InlineTransport
from headrace_worker.transfer.nixl_agent import NixlTransport
from headrace_worker.transfer.shape import HandOffError
from headrace_worker.transfer.shared_memory import SharedMemoryTransport
from headrace_worker.transfer.transport import Transport

TRANSPORTS: dict[str, type[Transport]] = {
    each.name: each for each in (InlineTransport, SharedMemoryTransport, NixlTransport)
}


def make_transport(name: str) -> Transport:
    """Raises HandOffError if there is none of this name."""
    if name not in TRANSPORTS:
        raise HandOffError(f"there is no transport {name!r}, only {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name]()
