"""One request by hand: how it is framed, when its direction is closed, and when its answer is read."""

import json
import socket
from typing import Any

from tests.integration.platform.running_platform import Platform


class RawHttp:
    """A connection to the gateway's public HTTP port; `receive_bytes` bounds what the kernel takes in unread."""

    def __init__(self, platform: Platform, receive_bytes: int | None = None) -> None:
        host, _, port = platform.http.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(60.0)
        self.socket.connect((host, int(port)))
        self._api_key = platform.api_key

    def __enter__(self) -> "RawHttp":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def post(self, path: str, body: Any, *headers: str, version: str = "1.1") -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/{version}", "host: x", f"authorization: Bearer {self._api_key}", *headers]
        head = "\r\n".join([*lines, f"content-length: {len(content)}", "", ""])
        self.socket.sendall(head.encode() + content)

    def close_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def rest(self) -> tuple[str, str]:
        """Head and body of all that comes until the gateway closes."""
        parts = []
        while part := self.socket.recv(65536):
            parts.append(part)
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        return head.decode(), body.decode()
