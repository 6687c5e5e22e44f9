"""The bytes of KV pages: gathered from the images of one replica, spread over those of another, and their sums.

A payload is [layer, K or V, page, token, head, word]: no trace of how many ranks either side has, so sides of different
tensor degrees understand each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from headrace_worker.transfer.image import PageImage, Words
from headrace_worker.transfer.shape import CorruptGroup, HandOffError, KvShape

_DIGEST_BYTES = 16
Sums = Words


class Extent(NamedTuple):
    """What a group is of: layers of the model, and pages by their index within the prompt."""

    first_layer: int
    num_layers: int
    first_page: int
    num_pages: int

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.num_layers)

    @property
    def pages(self) -> range:
        return range(self.first_page, self.first_page + self.num_pages)


class PoolImages:
    """All images of one replica's pool. Raises HandOffError if they do not make up the whole KV."""

    def __init__(self, images: Sequence[PageImage]) -> None:
        if not images:
            raise HandOffError("this replica has no pages that others can read")
        self.images = tuple(images)
        self.shape: KvShape = images[0].ref.shape
        self.num_pages = min(image.ref.num_pages for image in images)
        self._of_layer: dict[int, list[PageImage]] = {}
        self._readable: dict[int, list[PageImage]] = {}
        for image in images:
            for layer in image.ref.shard.layers:
                self._of_layer.setdefault(layer, []).append(image)
                readable = self._readable.setdefault(layer, [])
                if all(other.ref.shard.first_head != image.ref.shard.first_head for other in readable):
                    readable.append(image)
        for layer in range(self.shape.num_layers):
            heads = sum(image.ref.shard.num_heads for image in self._readable.get(layer, ()))
            if heads != self.shape.num_kv_heads:
                raise HandOffError(f"layer {layer} has {heads} of {self.shape.num_kv_heads} heads in the images")

    def of_layer(self, layer: int) -> list[PageImage]:
        """The images with heads of this layer: all of them are written."""
        return self._of_layer[layer]

    def readable(self, layer: int) -> list[PageImage]:
        """Those of them that are read: a head that several ranks hold counts once."""
        return self._readable[layer]

    def payload_bytes(self, num_layers: int, num_pages: int) -> int:
        return num_layers * num_pages * self.shape.page_bytes

    def pieces(self, layers: range, pages: Sequence[int]) -> list[memoryview]:
        """The payload of these layers and pages (by their numbers in this pool): parts of the pool, as it has them.

        Heads that lie in several images are put together in a copy.
        """
        runs, found = stretches(pages), list[memoryview]()
        for layer in layers:
            images = self.readable(layer)
            if len(images) > 1:
                found.append(self._together(layer, len(pages), runs))
                continue
            words = images[0].words[layer - images[0].ref.shard.first_layer]
            found += [words[kv, page : page + count].data for kv in range(2) for _, (page, count) in runs]
        return found

    def _together(self, layer: int, num_pages: int, runs: Runs) -> memoryview:
        shape = self.shape
        out: Words = np.empty((2, num_pages, shape.page_tokens, shape.num_kv_heads, shape.head_words), np.uint64)
        for image in self.readable(layer):
            words = image.words[layer - image.ref.shard.first_layer]
            for at, (page, count) in runs:
                out[:, at : at + count, :, image.ref.shard.heads] = words[:, page : page + count]
        return out.data

    def spread(self, payload: bytes | memoryview, layers: range, pages: Sequence[int]) -> Sums:
        """Writes a payload to these pages; returns its sums. Raises CorruptGroup if its length is wrong."""
        shape = self.shape
        expected = self.payload_bytes(len(layers), len(pages))
        if len(payload) != expected:
            raise CorruptGroup(f"a group has {len(payload)} bytes where {expected} were expected")
        dims = (len(layers), 2, len(pages), shape.page_tokens, shape.num_kv_heads, shape.head_words)
        words: Words = np.frombuffer(payload, np.uint64).reshape(dims)
        sums: Sums = np.empty(dims[:3], np.uint64)
        runs = stretches(pages)
        for place, layer in enumerate(layers):
            for image in self.of_layer(layer):
                target = image.words[layer - image.ref.shard.first_layer]
                for at, (page, count) in runs:
                    target[:, page : page + count] = words[place, :, at : at + count, :, image.ref.shard.heads]
            sums[place] = _sum_pages(words[place])
        return sums

    def sums(self, layers: range, pages: Sequence[int]) -> Sums:
        """Sums of what these pages hold now."""
        sums: Sums = np.zeros((len(layers), 2, len(pages)), np.uint64)
        runs = stretches(pages)
        for place, layer in enumerate(layers):
            for image in self.readable(layer):
                words = image.words[layer - image.ref.shard.first_layer]
                for at, (page, count) in runs:
                    sums[place, :, at : at + count] += _sum_pages(words[:, page : page + count])
        return sums


Runs = Sequence[tuple[int, tuple[int, int]]]


def stretches(pages: Sequence[int]) -> list[tuple[int, tuple[int, int]]]:
    """Runs of consecutive numbers: (place in `pages`, (first number, count)). Pools hand out pages in such runs."""
    found: list[tuple[int, tuple[int, int]]] = []
    for at, page in enumerate(pages):
        if found and sum(found[-1][1]) == page:
            start, (first, count) = found[-1]
            found[-1] = start, (first, count + 1)
        else:
            found.append((at, (page, 1)))
    return found


def _sum_pages(words: Words) -> Sums:
    """Of each page, over its tokens and heads, modulo 2^64: the heads' shares of different ranks add up to the same.

    Rows of a page's length are summed several times as fast as a token's.
    """
    flat = words.reshape(*words.shape[:2], -1)
    total: Sums = flat.sum(axis=-1, dtype=np.uint64)
    return total


def checksum(extent: Extent, sums: Sums) -> bytes:
    """Of a group: its place and the sum of the words of every page's keys, and of its values.

    A changed word, a page or layer in another's place, and a group that says it is another, all change it. Words that
    change places within a page do not: nothing moves less than a page, or the heads of a rank in it.
    """
    digest = blake2b(repr(tuple(extent)).encode(), digest_size=_DIGEST_BYTES)
    digest.update(np.ascontiguousarray(sums).data)
    return digest.digest()


def check(extent: Extent, sums: Sums, told: bytes) -> None:
    """Raises CorruptGroup if the sums are not those that the other side took."""
    if checksum(extent, sums) != told:
        where = f"layers {extent.first_layer} to {extent.first_layer + extent.num_layers - 1}"
        raise CorruptGroup(f"the checksum of {where}, pages from {extent.first_page}, is wrong")
