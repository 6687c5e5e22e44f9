"""The worker's command: builds everything and wires it to the process. Knows all parts and does no work itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys

import grpc

from headrace.v1 import fleet_pb2_grpc, worker_pb2_grpc
from headrace_kit import channels, serve, settings
from headrace_kit.serve import Host
from headrace_worker import allocator, nvml
from headrace_worker.agent import Agent
from headrace_worker.config import WorkerConfig
from headrace_worker.drain import drain
from headrace_worker.kv_pulls import Pulls
from headrace_worker.kv_servicer import KvTransferServicer
from headrace_worker.page_groups import CHANNEL_OPTIONS, add_pull_handler
from headrace_worker.replica import Replica
from headrace_worker.servicer import BookkeepingServicer, EngineServicer
from headrace_worker.supervision import Supervision

log = logging.getLogger(__name__)
# Of the time that a stopping process has, this much is kept for what follows the drain.
_AFTER_DRAIN_S = 3.0
_GOODBYE_S = 1.0


class Process:
    """The running worker, as those who may end it see it."""

    def __init__(self, config: WorkerConfig, host: Host) -> None:
        self._config, self._host = config, host
        self.replica = Replica(config, host.grpc.address, host.health)
        self.supervision = Supervision(config, self.replica)
        self.closing = asyncio.Event()
        self.agent: Agent | None = None

    async def run_engine(self) -> None:
        """The process does not outlive its engine: whoever launched it starts another one, under a new epoch."""
        await self.supervision.run()
        self._host.fail(self.supervision.broke or "the engine process has ended")

    async def drain_and_leave(self, deadline_s: float) -> None:
        await drain(self.replica, self.supervision.dispatch, deadline_s)
        self._host.stop()

    def leave(self) -> None:
        self._host.stop()

    async def on_drain(self) -> None:
        """SIGTERM: what runs may end within the drain time; then every stream is told and ends."""
        await drain(self.replica, self.supervision.dispatch, max(0.0, self._config.drain_s - _AFTER_DRAIN_S))
        self.closing.set()
        self.replica.leave()
        if self.agent is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self.agent.said_goodbye.wait()

    async def on_close(self) -> None:
        await self.supervision.host.stop()


def build(config: WorkerConfig, host: Host) -> Process:
    """Everything of this process, wired to its host."""
    process = Process(config, host)
    supervision = process.supervision
    worker_pb2_grpc.add_EngineServicer_to_server(EngineServicer(supervision, process.closing), host.grpc)
    pulls = _add_hand_offs(process, host)
    fleet_pb2_grpc.add_BookkeepingServicer_to_server(BookkeepingServicer(supervision, pulls), host.grpc)
    host.announced["replica_id"] = process.replica.replica_id
    if config.device == "cuda":
        log.info("gpu_metrics", extra={"available": nvml.register()})
    host.tasks.start("engine", process.run_engine, on_crash="fail")
    host.tasks.start("look", process.supervision.look, on_crash="fail")
    host.on_drain(process.on_drain)
    host.on_close(process.on_close)
    if config.controlplane is not None:
        channel = channels.connect(config.controlplane, token=host.service_token, peer="controlplane", tls=host.tls)
        process.agent = Agent(process.replica, channel, host.http.address, process)
        host.tasks.start("agent", process.agent.run)
        host.on_close(channel.close)
        host.export_spans(channel, "controlplane")
    return process


def _add_hand_offs(process: Process, host: Host) -> Pulls:
    """Both sides: what comes to this replica, and, for others to call, what goes from it."""
    supervision, replica = process.supervision, process.replica

    def connect(target: str) -> grpc.aio.Channel:
        options = tuple(CHANNEL_OPTIONS.items())
        return channels.connect(target, token=host.service_token, peer="worker", tls=host.tls, options=options)

    pulls = Pulls(replica, supervision.sources, supervision.host.send, connect)
    supervision.dispatch.on_hand_off = pulls.note
    supervision.on_look = pulls.look
    servicer = KvTransferServicer(replica, supervision.sources)
    add_pull_handler(host.grpc, servicer.Pull)
    host.on_close(pulls.close)
    return pulls


def main() -> None:
    config = settings.load(WorkerConfig, service="worker")
    if config.role != "both":
        allocator.keep_freed_memory()
    built: list[Process] = []

    async def compose(host: Host) -> None:
        built.append(build(config, host))

    try:
        serve.run("worker", config, compose)
    finally:
        # The last line that this process writes is the one that a person looks at.
        if built and built[0].supervision.broke:
            print(f"headrace-worker: {built[0].supervision.broke}", file=sys.stderr)


if __name__ == "__main__":
    main()
