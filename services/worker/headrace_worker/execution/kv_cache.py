"""KV pages as tensors, one pair per layer. Knows page numbers; who owns a page is the scheduler's business."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace_worker.attention.base import KvPages
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.scheduling.plan import PageCopy
from headrace_worker.transfer.image import DATA_AT, PageImage


@dataclass(frozen=True)
class KvLayout:
    """How a model's KV lies in the memory of one rank."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: LlamaForCausalLM, page_tokens: int, dtype: torch.dtype, device: torch.device) -> KvLayout:
        """Of the layers and heads that this rank has; the layers are alike."""
        heads = model.kv_heads_per_layer
        return cls(len(heads), heads[0], model.config.head_dim, page_tokens, dtype, device)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def bytes_per_page(self) -> int:
        return self.bytes_per_token * self.page_tokens


def _zeros(shape: tuple[int, ...], layout: KvLayout) -> Tensor:
    """On CPU memory of the kernel's zero page: it becomes real as pages are first written, not all at start."""
    if layout.device.type != "cpu":
        return torch.zeros(shape, dtype=layout.dtype, device=layout.device)
    anonymous = mmap.mmap(-1, math.prod(shape) * layout.dtype.itemsize)
    return torch.frombuffer(anonymous, dtype=layout.dtype).view(shape)


class KvCache:
    """`num_pages` pages and the null page before them."""

    def __init__(self, layout: KvLayout, num_pages: int, image: PageImage | None = None) -> None:
        self.layout = layout
        self.num_pages = num_pages
        self.image = image
        shape = (num_pages + 1, layout.page_tokens, layout.num_kv_heads, layout.head_dim)
        self._is_image = image is not None and layout.device.type == "cpu"
        if self._is_image:
            mirror = self._mirror()
            self.layers = [KvPages(mirror[layer, 0], mirror[layer, 1]) for layer in range(layout.num_layers)]
        else:
            self.layers = [KvPages(_zeros(shape, layout), _zeros(shape, layout)) for _ in range(layout.num_layers)]

    def show(self, pages: Sequence[int], layers: range) -> None:
        """Make what these pages hold visible in the image: where that is not the pool itself, copy it there."""
        if self._is_image:
            return
        mirror, index = self._mirror().view(torch.uint8), torch.tensor(pages, device=self.layout.device)
        for layer in layers:
            for kv, tensor_PBKD in enumerate((self.layers[layer].k_PBKD, self.layers[layer].v_PBKD)):
                mirror[layer, kv, list(pages)] = tensor_PBKD.view(torch.uint8)[index].cpu()

    def load(self, pages: Sequence[int]) -> None:
        """Take over what the image holds of these pages."""
        if self._is_image or not pages:
            return
        mirror, index = self._mirror().view(torch.uint8), torch.tensor(pages, device=self.layout.device)
        for layer, kept in enumerate(self.layers):
            for kv, tensor_PBKD in enumerate((kept.k_PBKD, kept.v_PBKD)):
                tensor_PBKD.view(torch.uint8)[index] = mirror[layer, kv, list(pages)].to(self.layout.device)

    def _mirror(self) -> Tensor:
        """The image as a tensor [layers, 2, P, B, K, D]."""
        assert self.image is not None, "nobody reads these pages"
        layout = self.layout
        shape = (layout.num_layers, 2, self.num_pages + 1, layout.page_tokens, layout.num_kv_heads, layout.head_dim)
        return torch.frombuffer(self.image.mapping, dtype=layout.dtype, offset=DATA_AT).view(shape)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copies the first slots of pages and clears the rest, whatever an earlier owner left there."""
        for source, target, num_tokens in copies:
            for pages in self.layers:
                for tensor_PBKD in (pages.k_PBKD, pages.v_PBKD):
                    tensor_PBKD[target, :num_tokens] = tensor_PBKD[source, :num_tokens]
                    tensor_PBKD[target, num_tokens:] = 0
