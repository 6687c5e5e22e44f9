"""Workers on another host: the first is a project, and the other this machine itself, which sees published ports only.

Two projects cannot stand for two hosts: an engine lets no container of one network reach the ports of another's.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.stack import BUILD_S, Stack, copy_tree, wait_until

pytestmark = pytest.mark.compose

FIRST = ["-f", "compose.yaml", "-f", "deploy/compose/several-hosts.yaml"]
WORKERS = ["-f", "compose.yaml", "-f", "deploy/compose/worker-host.yaml", "-f", "on-the-host.yaml"]
CONTROLPLANE_PORT, WORKER_PORT = 17000, 7000
ON_THE_HOST = """
services:
  worker:
    network_mode: host
    networks: !reset null
    ports: !reset null
"""
NEEDED = ("ca.pem", "worker.pem", "worker-key.pem", "service-token")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def worker_host(empty_stack: Stack, tmp_path: Path) -> Iterator[Stack]:
    copy_tree(tmp_path)
    other = Stack(tmp_path, project=f"{empty_stack.environ['COMPOSE_PROJECT_NAME']}-far")
    bridge = other.run(
        "docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"
    ).strip()
    other.environ |= {
        "HEADRACE_CONTROLPLANE": f"{bridge}:{CONTROLPLANE_PORT}",
        "HEADRACE_ADVERTISE": f"{bridge}:{WORKER_PORT}",
    }
    (tmp_path / "on-the-host.yaml").write_text(ON_THE_HOST)
    try:
        yield other
    finally:
        other.compose(*WORKERS, "down", "--volumes")


def test_a_worker_of_another_host_serves(empty_stack: Stack, worker_host: Stack) -> None:
    first = empty_stack
    first.environ["HEADRACE_CONTROLPLANE_PORT"] = str(CONTROLPLANE_PORT)
    first.compose("build", timeout_s=BUILD_S)
    first.compose("run", "--build", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "init")
    first.compose(*FIRST, "up", "--detach", "--wait", "--scale", "worker=0")
    for name in NEEDED:
        (worker_host.folder / "secrets" / name).write_bytes((first.folder / "secrets" / name).read_bytes())
    worker_host.compose(*WORKERS, "up", "--detach", "--wait", "--no-deps", "worker", timeout_s=BUILD_S)
    with first.client() as client:
        wait_until(client.models, "the gateway has the model's card")
        answer = client.generate("smollm2-135m-instruct", QUESTION, max_output_tokens=30, temperature=0)
        assert "Paris" in answer.text()
