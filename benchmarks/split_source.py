"""A prefill replica without an engine: production's service of hand-offs over a pool whose pages are always ready.

Run as `python -m benchmarks.split_source NUM_PAGES`; prints its address.
"""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from headrace.v1 import worker_pb2_grpc
from headrace_kit.channels import server_options
from headrace_worker.kv_servicer import KvTransferServicer
from headrace_worker.kv_sources import Sources
from headrace_worker.messages import PagesReady, Submit
from headrace_worker.scheduling.events import Finished
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.shape import KvShape, Shard

SHAPE = KvShape(30, 3, 64, "float32", 16)
EPOCH = "bench"


def make_sources(num_pages: int) -> tuple[Any, Sources]:
    """A replica by name, and its hand-offs: what it is asked to prefill is ready at once."""
    image = PageImage.create(SHAPE, Shard(0, SHAPE.num_layers, 0, SHAPE.num_kv_heads), num_pages + 1)
    image.words[:] = np.arange(image.words[0].size, dtype=np.uint64).reshape(image.words.shape[1:])
    config = SimpleNamespace(role="prefill", page_tokens=SHAPE.page_tokens)
    described = SimpleNamespace(images=(image.ref,))
    replica: Any = SimpleNamespace(
        config=config, description=described, epoch=EPOCH, kv_context=b"", ready=True, progress="ready", image=image
    )

    def send(command: Any) -> None:
        if not isinstance(command, Submit):
            return
        handle, num_prompt = command.request.handle, command.request.num_prompt
        pages = tuple(range(1, -(-num_prompt // SHAPE.page_tokens) + 1))
        ready = PagesReady((PageExport(handle, 0, pages, True),), 0, SHAPE.num_layers)
        times = (0.0, 0.0, 0.0, 0.0)
        over = Finished(handle, "", 1, 0, "completed", "prefilled", num_prompt, 0, 0, 0, 0, *times, 0, 0)
        output: Any = SimpleNamespace(events=(over,))
        loop = asyncio.get_running_loop()
        loop.call_soon(sources.note, ready)
        loop.call_soon(sources.note_events, output)

    handles = iter(range(1, 1 << 30))
    sources = Sources(replica, send, lambda count: next(handles))
    return replica, sources


async def main() -> None:
    replica, sources = make_sources(int(sys.argv[1]))
    server = grpc.aio.server(options=server_options())
    worker_pb2_grpc.add_KvTransferServicer_to_server(KvTransferServicer(replica, sources), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
