"""A rank's KV pool in memory that other processes of this host can map, with the words that fence its readers.

    header: 16 bytes of identity | one 64-bit lease word per slot | layer, K or V, page, token, head, word ...

On CPU the image is the pool itself. The engine's process makes it; the worker's process, and on one host the other
replica's, map it by the maker's descriptor, so nothing is left behind when the maker dies. A lease word is the
generation of the transfer that may read, or 0: it is cleared before the pages may be given to others, so a reader who
finds it unchanged after reading has read what was promised.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from headrace_worker.transfer.shape import WORD_BYTES, HandOffError, KvShape, Shard

NUM_SLOTS = 4096
_IDENTITY_BYTES = 16
_SLOTS_AT = 4096
DATA_AT = 65_536

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Where another process of this host finds an image, and what it holds. `num_pages` includes the null page."""

    pid: int
    fd: int
    identity: str
    shape: KvShape
    shard: Shard
    num_pages: int

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        """Layers, 2 (K and V), pages, tokens of a page, heads, words of a head."""
        return (
            self.shard.num_layers,
            2,
            self.num_pages,
            self.shape.page_tokens,
            self.shard.num_heads,
            self.shape.head_words,
        )

    @property
    def num_bytes(self) -> int:
        return DATA_AT + math.prod(self.dims) * WORD_BYTES

    def to_plain(self) -> dict[str, object]:
        """For a message."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, object]) -> ImageRef:
        """Raises HandOffError if this is none."""
        try:
            shape, shard = KvShape(**plain["shape"]), Shard(**plain["shard"])  # type: ignore[arg-type]
            rest = {key: plain[key] for key in ("pid", "fd", "identity", "num_pages")}
            return cls(shape=shape, shard=shard, **rest)  # type: ignore[arg-type]
        except (KeyError, TypeError) as error:
            raise HandOffError(f"no reference to an image: {error!r}") from error


class PageImage:
    """A mapping of an image. `words` has the dims of the reference; lease words are `slots`."""

    def __init__(self, ref: ImageRef, mapping: mmap.mmap, inode: int) -> None:
        self.ref, self.mapping, self._inode = ref, mapping, inode
        self.slots: Words = np.frombuffer(mapping, np.uint64, NUM_SLOTS, _SLOTS_AT)
        self.words: Words = np.frombuffer(mapping, np.uint64, math.prod(ref.dims), DATA_AT).reshape(ref.dims)

    @classmethod
    def create(cls, shape: KvShape, shard: Shard, num_pages: int) -> PageImage:
        """Zeros, which become real memory as they are first written. `num_pages` includes the null page."""
        identity = secrets.token_bytes(_IDENTITY_BYTES)
        fd = os.memfd_create("headrace-kv", os.MFD_CLOEXEC)
        ref = ImageRef(os.getpid(), fd, identity.hex(), shape, shard, num_pages)
        os.ftruncate(fd, ref.num_bytes)
        mapping = mmap.mmap(fd, ref.num_bytes)
        mapping[:_IDENTITY_BYTES] = identity
        return cls(ref, mapping, os.fstat(fd).st_ino)

    @classmethod
    def open(cls, ref: ImageRef) -> PageImage:
        """An image of another process of this host and user. Raises HandOffError if it is not there."""
        try:
            fd = os.open(f"/proc/{ref.pid}/fd/{ref.fd}", os.O_RDWR | os.O_CLOEXEC)
            try:
                found = os.fstat(fd)
                if found.st_size != ref.num_bytes:
                    raise HandOffError(f"process {ref.pid} has another image than it said")
                mapping = mmap.mmap(fd, ref.num_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            raise HandOffError(f"the pages of process {ref.pid} cannot be mapped here: {error.strerror}") from error
        if mapping[:_IDENTITY_BYTES].hex() != ref.identity:
            raise HandOffError(f"process {ref.pid} has another image than it said")
        return cls(ref, mapping, found.st_ino)

    def is_there(self) -> bool:
        """Whether its maker still has it."""
        try:
            return os.stat(f"/proc/{self.ref.pid}/fd/{self.ref.fd}").st_ino == self._inode
        except OSError:
            return False

    @property
    def address(self) -> int:
        """Of the first word."""
        return int(self.words.ctypes.data)
