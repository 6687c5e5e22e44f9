"""A gateway that restarts in order: streams finish, and clients that wait for it notice nothing but the wait.

What is too long for that is told that it lost its gateway.
"""

import asyncio
import json
import os
import signal

import httpx
import psutil

from headrace_cli.client import AsyncClient
from tests.integration.platform.running_platform import Platform

LONG = [{"role": "user", "content": json.dumps(["a", "!rate(5)", "!repeat(300,x)"])}]
RUNNING = [{"role": "user", "content": json.dumps(["a", "!rate(20)", "!repeat(40,x)"])}]


async def ask(client: AsyncClient) -> str:
    prompt = [{"role": "user", "content": "hi"}]
    async with client.generate("scripted", prompt, deadline_s=60.0, wait_for_ready=True) as stream:
        return await stream.text()


async def post(client: httpx.AsyncClient) -> str:
    """How one request over HTTP fared: its text, the code of its error, or that nobody was there."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    try:
        answer = await client.post("/v1/chat/completions", json=body)
    except httpx.TransportError:
        return "nobody"
    if answer.status_code == 200:
        return str(answer.json()["choices"][0]["message"]["content"])
    assert answer.status_code == 503 and "retry-after" in answer.headers
    return str(answer.json()["error"]["code"])


async def test_clients_that_wait_for_ready_survive_a_restart(platform: Platform) -> None:
    async with asyncio.timeout(90.0), platform.async_client() as client:
        assert await ask(client) == "hi"
        running = client.generate("scripted", RUNNING, deadline_s=60.0)
        events = aiter(running)
        while (await anext(events)).WhichOneof("event") != "delta":
            pass
        old = platform.announced("gateway")["pid"]
        os.kill(old, signal.SIGTERM)
        asked, fared = [], list[str]()
        headers = {"authorization": f"Bearer {platform.api_key}"}
        async with httpx.AsyncClient(base_url=platform.http, headers=headers, trust_env=False, timeout=60) as http:
            while psutil.pid_exists(old) or fared[-1] != "hi":
                asked.append(asyncio.create_task(ask(client)))
                fared.append(await post(http))
                await asyncio.sleep(0.1)
        assert await running.text() == "a" + "x" * 40, "what ran when it began to stop runs to its end"
        answers = await asyncio.gather(*asked, ask(client))
    assert len(answers) > 10 and set(answers) == {"hi"}
    assert "draining" in fared


async def test_what_runs_longer_than_it_may_fails_and_is_not_its_clients_doing(platform: Platform) -> None:
    await asyncio.to_thread(platform.wait_ready)
    async with asyncio.timeout(60.0), platform.async_client() as client:
        stream = client.generate("scripted", LONG, deadline_s=60.0)
        async for event in stream:
            if event.WhichOneof("event") == "delta":
                os.kill(platform.announced("gateway")["pid"], signal.SIGTERM)
                break
        async for _ in stream:
            pass
    assert stream.terminal is not None and stream.kind == "failed"
    assert (stream.terminal.failed.reason, stream.terminal.failed.retryable) == ("gateway_lost", True)
