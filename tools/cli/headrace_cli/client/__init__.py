"""The Python client: one ordered stream under one identity that ends exactly once, and errors with names."""

from headrace_cli.client.aio import AsyncClient, AsyncStream
from headrace_cli.client.request import build_request
from headrace_cli.client.stream import StreamBroken, StreamCursor
from headrace_cli.client.sync import Client, Stream

__all__ = ["AsyncClient", "AsyncStream", "Client", "Stream", "StreamBroken", "StreamCursor", "build_request"]
