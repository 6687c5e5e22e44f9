"""One-sided reads by NIXL (UCX): between hosts with RDMA, and on one host without any. Optional: `nixl-cu12`.

The opening carries the owner's agent metadata and where its images lie; the reader reads page by page straight into its
own images. NIXL says nothing of leases: the lease word is read the same way, after the pages.
Library: github.com/ai-dynamo/nixl, docs/python_api.md.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace_worker.transfer.image import ImageRef, PageImage
from headrace_worker.transfer.pages import Extent, PoolImages, check, checksum
from headrace_worker.transfer.shape import WORD_BYTES, Expired, HandOffError
from headrace_worker.transfer.transport import LONGEST_S, Carried, Lease, SourceEnd, TargetEnd, Transport

_PACKAGE = "nixl_cu12"
Run = tuple[int, int, int]
"""Address there, address here, bytes."""


def why_not() -> str:
    """Why NIXL cannot be used in this process; empty if it can."""
    return "" if importlib.util.find_spec(_PACKAGE) else f"{_PACKAGE.replace('_', '-')} is not installed"


def _new_agent() -> Any:
    if reason := why_not():
        raise HandOffError(f"nixl: {reason}")
    api = importlib.import_module(f"{_PACKAGE}._api")
    try:
        return api.nixl_agent(f"headrace-{secrets.token_hex(6)}", api.nixl_agent_config(backends=["UCX"]))
    except RuntimeError as error:  # what its bindings raise for whatever goes wrong
        raise HandOffError(f"nixl: {error}") from error


class _Registered:
    """An agent that knows the memory of some images. NIXL registers what is mapped, lease words included."""

    def __init__(self, images: PoolImages) -> None:
        self.agent = _new_agent()
        self.word = np.zeros(1, np.uint64)
        self.lock = threading.Lock()
        regions = [(image.slots.ctypes.data, image.slots.nbytes, 0, "") for image in images.images]
        regions += [(image.address, image.words.nbytes, 0, "") for image in images.images]
        regions.append((self.word.ctypes.data, self.word.nbytes, 0, ""))
        self._memory = self.agent.register_memory(regions, "DRAM")

    def close(self) -> None:
        self.agent.deregister_memory(self._memory)


class NixlSource(SourceEnd):
    def __init__(self, images: PoolImages) -> None:
        super().__init__(images)
        self._registered = _Registered(images)

    def opening(self, lease: Lease) -> str:
        first = self.images.images[0]
        return json.dumps(
            {
                "agent": base64.b64encode(self._registered.agent.get_agent_metadata()).decode(),
                "word": int(first.slots.ctypes.data) + lease.slot * WORD_BYTES,
                "images": [{"at": image.address, "ref": image.ref.to_plain()} for image in self.images.images],
            }
        )

    def carry(self, extent: Extent, pages: Sequence[int]) -> Carried:
        return Carried(checksum(extent, self.images.sums(extent.layers, pages)))


class _Remote:
    """What an opening says of the other end."""

    def __init__(self, opening: str) -> None:
        try:
            plain = json.loads(opening)
            self.metadata = base64.b64decode(plain["agent"])
            self.word = int(plain["word"])
            self.images = [(int(each["at"]), ImageRef.from_plain(each["ref"])) for each in plain["images"]]
        except (ValueError, KeyError, TypeError) as error:
            raise HandOffError(f"the opening cannot be read: {error!r}") from error


class NixlTarget(TargetEnd):
    """`registered` is this replica's agent, shared by its transfers, which take turns."""

    def __init__(self, images: PoolImages, registered: _Registered) -> None:
        super().__init__(images)
        self._registered = registered
        self._remote: _Remote | None = None
        self._peer = ""
        self._lease = Lease(0, 0)

    def open(self, opening: str, lease: Lease) -> None:
        remote = _Remote(opening)
        for _, ref in remote.images:
            self.images.shape.check(ref.shape)
        try:
            peer = self._registered.agent.add_remote_agent(remote.metadata)
        except RuntimeError as error:
            raise HandOffError(f"nixl: {error}") from error
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._remote, self._lease = remote, lease

    def take(self, extent: Extent, carried: Carried, source_pages: Sequence[int], pages: Sequence[int]) -> None:
        if self._remote is None:
            raise HandOffError("a group came before the opening")
        if len(source_pages) != len(pages):
            raise HandOffError("a group names pages that the other side does not have")
        runs = [run for layer in extent.layers for run in self._runs(layer, source_pages, pages)]
        registered = self._registered
        with registered.lock:
            self._read(runs)
            sums = self.images.sums(extent.layers, pages)
            self._read([(self._remote.word, int(registered.word.ctypes.data), WORD_BYTES)])
            word = int(registered.word[0])
        if word != self._lease.generation:
            raise Expired("the lease of the source pages has ended")
        check(extent, sums, carried.checksum)

    def close(self) -> None:
        self._remote = None

    def _runs(self, layer: int, source_pages: Sequence[int], pages: Sequence[int]) -> list[Run]:
        """Contiguous stretches of a layer that both sides have: whole pages, or the shared heads of each token."""
        shape, runs = self.images.shape, list[Run]()
        for at, theirs, image, first, last in self._shared(layer):
            whole = theirs.shard.num_heads == image.ref.shard.num_heads
            tokens = range(1 if whole else shape.page_tokens)
            size = (last - first) * shape.head_words * WORD_BYTES * (shape.page_tokens if whole else 1)
            runs += [
                (
                    at + _offset(theirs, (layer, kv, source, token, first)),
                    image.address + _offset(image.ref, (layer, kv, target, token, first)),
                    size,
                )
                for kv in range(2)
                for source, target in zip(source_pages, pages, strict=True)
                for token in tokens
            ]
        return runs

    def _shared(self, layer: int) -> Iterator[tuple[int, ImageRef, PageImage, int, int]]:
        """Pairs of images with heads in common: address of theirs, theirs, ours, first common head, end of them."""
        assert self._remote is not None, "opened"
        for at, theirs in self._remote.images:
            if layer not in theirs.shard.layers:
                continue
            for image in self.images.of_layer(layer):
                there, here = theirs.shard, image.ref.shard
                first = max(there.first_head, here.first_head)
                last = min(there.first_head + there.num_heads, here.first_head + here.num_heads)
                if first < last:
                    yield at, theirs, image, first, last

    def _read(self, runs: list[Run]) -> None:
        """Waits for its end. One that takes too long is released, which ends its operations, before this raises."""
        agent = self._registered.agent
        local = agent.get_xfer_descs([(here, size, 0) for _, here, size in runs], "DRAM")
        remote = agent.get_xfer_descs([(there, size, 0) for there, _, size in runs], "DRAM")
        try:
            handle = agent.initialize_xfer("READ", local, remote, self._peer, b"")
        except RuntimeError as error:
            raise HandOffError(f"nixl: {error}") from error
        until_s, state = time.monotonic() + LONGEST_S, "PROC"
        try:
            state = agent.transfer(handle)
            while state == "PROC" and time.monotonic() < until_s:
                time.sleep(0)
                state = agent.check_xfer_state(handle)
        except RuntimeError as error:
            raise HandOffError(f"nixl: {error}") from error
        finally:
            agent.release_xfer_handle(handle)
        if state != "DONE":
            raise HandOffError(f"nixl: the read ended as {state}")


def _offset(ref: ImageRef, at: tuple[int, int, int, int, int]) -> int:
    """Bytes from the first word of an image to a head of a token."""
    layer, kv, page, token, head = at
    _, _, num_pages, page_tokens, num_heads, head_words = ref.dims
    index = ((layer - ref.shard.first_layer) * 2 + kv) * num_pages + page
    index = (index * page_tokens + token) * num_heads + head - ref.shard.first_head
    return index * head_words * WORD_BYTES


class NixlTransport(Transport):
    name = "nixl"
    one_sided = True

    def __init__(self) -> None:
        self._registered: _Registered | None = None

    def source(self, images: PoolImages) -> SourceEnd:
        return NixlSource(images)

    def target(self, images: PoolImages) -> TargetEnd:
        if self._registered is None:
            self._registered = _Registered(images)
        return NixlTarget(images, self._registered)
