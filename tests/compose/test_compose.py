"""The stack on a real engine: it comes up, streams, loses its worker, scales, and drains. The order is part of it."""

import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator

import httpx
import pytest

from headrace_cli.client import Client
from tests.compose.stack import Stack, wait_until

pytestmark = pytest.mark.compose

MODEL = "smollm2-135m-instruct"
SERVICES = ("controlplane", "policy", "router", "gateway")
MAX_BEYOND_BASE_BYTES = 150 * 1024 * 1024
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a very long story about a river."}]
TERMINALS = {"completed", "incomplete", "failed", "cancelled"}


def http(stack: Stack, index: int = 1) -> httpx.Client:
    trusted = ssl.create_default_context(cadata=stack.ca.decode())
    headers = {"authorization": f"Bearer {stack.api_key}"}
    return httpx.Client(base_url=f"https://{stack.address(8080, index)}", verify=trusted, headers=headers, timeout=300)


def sse(client: httpx.Client, messages: list[dict[str, str]], max_tokens: int) -> Iterator[str]:
    """The data of each event of a streamed chat completion."""
    body = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, response.read()
        yield from (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))


def kinds(client: Client, max_tokens: int) -> Iterator[str]:
    """The kind of each event of a gRPC stream."""
    with client.generate(MODEL, STORY, max_output_tokens=max_tokens, temperature=0) as stream:
        yield from (str(event.WhichOneof("event")) for event in stream)


def finish_reasons(events: list[str]) -> list[str]:
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


class Reader:
    """Reads a stream beside the test."""

    def __init__(self, source: Iterator[str]) -> None:
        self.events: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._thread.start()

    def rest(self, timeout_s: float = 90.0) -> list[str]:
        """Everything, once the stream has ended."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the stream did not end: {self.events[-3:]}"
        return self.events

    def _read(self, source: Iterator[str]) -> None:
        self.events.extend(source)


def answer(stack: Stack, index: int = 1) -> str:
    with stack.client(index) as client:
        return client.generate(MODEL, QUESTION, max_output_tokens=30, temperature=0).text()


def test_it_streams_over_tls_the_answer_that_the_model_gives(stack: Stack) -> None:
    assert "Paris" in answer(stack)
    with http(stack) as client:
        events = list(sse(client, QUESTION, 30))
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "Paris" in "".join(choice["delta"].get("content") or "" for choice in choices)
    assert finish_reasons(events[:-1]) == ["stop"]


def test_nothing_but_the_gateway_is_reachable_and_nothing_without_tls(stack: Stack) -> None:
    published = {
        name: stack.inspect(name, "{{json .HostConfig.PortBindings}}") for name in (*SERVICES, "worker", "redis")
    }
    assert [name for name, ports in published.items() if ports not in ("{}", "null")] == ["gateway"]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{stack.address(8080)}/v1/models", timeout=10, trust_env=False)
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"https://{stack.address(8080)}/v1/models", timeout=10, trust_env=False)


@pytest.mark.parametrize("service", ["controlplane", "policy", "router", "gateway", "worker"])
def test_a_service_answers_only_its_own_kind_and_proves_who_it_is(stack: Stack, service: str) -> None:
    probe = ["exec", "-T", service, "headrace-healthcheck"]
    stack.compose(*probe)
    without = ["docker", "compose", "exec", "-T", service, "env", "-u", "HEADRACE_HEALTHCHECK_TLS_CA", probe[-1]]
    for words in (without, ["docker", "compose", *probe, "--peer=somebody.headrace.internal"]):
        done = subprocess.run(words, cwd=stack.folder, env=stack.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "UNAVAILABLE" in done.stderr, done


@pytest.mark.parametrize("service", ["controlplane", "policy", "router", "gateway", "worker"])
def test_a_container_can_do_little(stack: Stack, service: str) -> None:
    assert stack.compose("exec", "-T", service, "id", "-u").strip() == "10001"
    assert stack.inspect(service, "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}}") == "true [ALL]"
    assert stack.inspect(service, "{{.HostConfig.SecurityOpt}}") == "[no-new-privileges:true]"
    assert int(stack.inspect(service, "{{.HostConfig.Memory}}")) > 0


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_adds_little_to_its_base(stack: Stack, service: str) -> None:
    def size(image: str) -> int:
        return int(stack.run("docker", "image", "inspect", "--format", "{{.Size}}", image))

    assert size(f"headrace-{service}:test") - size("python:3.11-slim") <= MAX_BEYOND_BASE_BYTES


def test_a_worker_killed_in_mid_stream_ends_every_stream_exactly_once(stack: Stack) -> None:
    with http(stack) as first, stack.client() as second:
        by_http, by_grpc = Reader(sse(first, STORY, 1500)), Reader(kinds(second, 1500))
        wait_until(lambda: len(by_http.events) > 4 and by_grpc.events.count("delta") > 3, "both streams run")
        crash_worker(stack)
        http_events, grpc_kinds = by_http.rest(), by_grpc.rest()
    assert [kind for kind in grpc_kinds if kind in TERMINALS] == ["failed"] and grpc_kinds[-1] == "failed"
    errors = [event for event in http_events if event != "[DONE]" and "error" in json.loads(event)]
    assert len(errors) == 1 and http_events[-1] == errors[0], http_events[-3:]
    assert not finish_reasons(http_events[:-1])


def crash_worker(stack: Stack) -> None:
    """What the kernel would do out of memory; the restart policy holds for it, as it does not for `docker kill`."""
    if os.geteuid() == 0:
        os.kill(int(stack.inspect("worker", "{{.State.Pid}}")), signal.SIGKILL)
    else:
        stack.compose("kill", "worker")
        stack.compose("start", "worker")


def test_the_worker_comes_back_and_serves(stack: Stack) -> None:
    wait_until(lambda: stack.inspect("worker", "{{.State.Health.Status}}") == "healthy", "a worker is ready", 300)
    assert os.geteuid() != 0 or int(stack.inspect("worker", "{{.RestartCount}}")) == 1
    assert "Paris" in answer(stack), "a request waits until the router knows the new replica"


def test_two_gateways_answer_side_by_side(stack: Stack) -> None:
    stack.compose("up", "--detach", "--wait", "--no-recreate", "--scale", "gateway=2")
    addresses = {stack.address(8080, index) for index in (1, 2)}
    assert len(addresses) == 2
    for index in (1, 2):
        assert "Paris" in answer(stack, index)
        with http(stack, index) as client:
            assert MODEL in client.get("/v1/models").text


def test_down_lets_a_stream_end(stack: Stack) -> None:
    with http(stack) as client:
        stream = Reader(sse(client, STORY, 60))
        wait_until(lambda: len(stream.events) > 3, "the stream runs")
        stack.compose("down")
        events = stream.rest()
    assert events[-1] == "[DONE]"
    assert finish_reasons(events[:-1]) in (["length"], ["stop"])
    assert stack.compose("ps", "--all", "--quiet") == ""
