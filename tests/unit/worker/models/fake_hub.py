"""A Hugging Face Hub on loopback: one repository, its files, and a count of what was fetched."""

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "acme/tiny"


class FakeHub:
    """`files` may change between calls; `broken` names files whose download fails."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.broken: set[str] = set()
        self.downloads: Counter[str] = Counter()
        self.endpoint = ""

    def model_info(self) -> bytes:
        siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
        return json.dumps({"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path in (f"/api/models/{REPOSITORY}/revision/{name}" for name in ("main", COMMIT)):
                return self._answer(200, hub.model_info(), {"Content-Type": "application/json"})
            return self._file(path, with_body=True)

        def do_HEAD(self) -> None:
            self._file(self.path.split("?")[0], with_body=False)

        def _file(self, path: str, with_body: bool) -> None:
            name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
            if name not in hub.files:
                code = "RevisionNotFound" if "/revision/" in path and REPOSITORY in path else "RepoNotFound"
                return self._answer(404, b"", {"X-Error-Code": code, "X-Error-Message": "not here"})
            if name in hub.broken and with_body:
                return self._answer(403, b"", {})
            content = hub.files[name]
            hub.downloads[name] += with_body
            etag = hashlib.sha256(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            return self._answer(200, content, headers, with_body)

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool = True) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    return Handler


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub on a free port until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
