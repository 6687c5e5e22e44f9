"""A prefill replica without an engine: production's service of hand-offs over a pool whose pages are always ready.

Run as `python -m benchmarks.split_source NUM_PAGES SHAPE`; prints its address.
"""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np

from headrace_kit.channels import server_options
from headrace_worker.allocator import keep_freed_memory
from headrace_worker.kv_servicer import KvTransferServicer
from headrace_worker.kv_sources import Sources
from headrace_worker.messages import PagesReady, Submit
from headrace_worker.page_groups import add_pull_handler
from headrace_worker.scheduling.events import Finished
from headrace_worker.scheduling.plan import PageExport
from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.shape import KvShape, Shard

EPOCH = "bench"


def make_sources(num_pages: int, shape: KvShape) -> tuple[Any, Sources]:
    """A replica by name, and its hand-offs: what it is asked to prefill is ready at once."""
    image = PageImage.create(shape, Shard(0, shape.num_layers, 0, shape.num_kv_heads), num_pages + 1)
    image.words[:] = np.arange(image.words[0].size, dtype=np.uint64).reshape(image.words.shape[1:])
    config = SimpleNamespace(role="prefill", page_tokens=shape.page_tokens)
    described = SimpleNamespace(images=(image.ref,))
    replica: Any = SimpleNamespace(
        config=config, description=described, epoch=EPOCH, kv_context=b"", ready=True, progress="ready", image=image
    )

    def send(command: Any) -> None:
        if not isinstance(command, Submit):
            return
        handle, num_prompt = command.request.handle, command.request.num_prompt
        pages = tuple(range(1, -(-num_prompt // shape.page_tokens) + 1))
        ready = PagesReady((PageExport(handle, 0, pages, True),), 0, shape.num_layers)
        times = (0.0, 0.0, 0.0, 0.0)
        over = Finished(handle, "", 1, 0, "completed", "prefilled", num_prompt, 0, 0, 0, 0, *times, 0, 0)
        output: Any = SimpleNamespace(events=(over,), device_s={})
        loop = asyncio.get_running_loop()
        loop.call_soon(sources.note, ready)
        loop.call_soon(sources.note_events, output)

    handles = iter(range(1, 1 << 30))
    sources = Sources(replica, send, lambda count: next(handles))
    return replica, sources


async def main() -> None:
    keep_freed_memory()
    replica, sources = make_sources(int(sys.argv[1]), KvShape(**json.loads(sys.argv[2])))
    server = grpc.aio.server(options=server_options())
    add_pull_handler(server, KvTransferServicer(replica, sources).Pull)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
