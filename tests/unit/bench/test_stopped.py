"""A load that is stopped by a signal tells what it has, and says that this is not all."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class Server:
    """Answers its first three chats and never ends the others."""

    def __init__(self) -> None:
        self.num_asked, self.many = 0, asyncio.Event()
        routes = [Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"])]
        self.app = Starlette(routes=routes)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def chat(self, request: Request) -> Response:
        self.num_asked += 1
        if self.num_asked == 20:
            self.many.set()
        return StreamingResponse(self.events(self.num_asked), media_type="text/event-stream")

    async def events(self, number: int) -> AsyncIterator[str]:
        chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
        yield f"data: {json.dumps(chunk)}\n\n"
        if number > 3:
            await asyncio.Event().wait()
        chunk["choices"][0] = {"index": 0, "delta": {}, "finish_reason": "stop"}
        yield f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_was_measured_is_told_when_a_signal_ends_the_load(number: signal.Signals, tmp_path: Path) -> None:
    server = Server()
    served = uvicorn.Server(uvicorn.Config(server.app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(served.serve())
    while not served.started:  # noqa: ASYNC110  nobody tells
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    figures, report = tmp_path / "figures.json", tmp_path / "report.html"
    command = [sys.executable, "-m", "headrace_bench", url, "--rate", "20", "--duration", "600"]
    child = await asyncio.create_subprocess_exec(
        *(*command, "--json", str(figures), "--html", str(report)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            await server.many.wait()
            os.kill(child.pid, number)
            out, err = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        served.should_exit = served.force_exit = True
        await serving
    assert child.returncode == 130, err.decode()
    summary = json.loads(figures.read_text())["summary"]
    assert summary["cut_short"] and summary["num_completed"] == 3 and summary["num_dropped"] >= 17
    assert "INCOMPLETE" in out.decode() and "INCOMPLETE" in report.read_text()
