"""Tells, in the middle of a step, which layers of exported pages are whole: they travel while others compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from headrace_worker.execution.kv_cache import KvCache
from headrace_worker.execution.runner import OnPages
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.parallel.place import Place
from headrace_worker.scheduling.plan import Plan
from headrace_worker.transfer.image import PageImage
from headrace_worker.transfer.shape import KvShape, Shard

# A step of few layers per message would cost more in messages than it gains in time.
_NUM_PARTS = 8
_WIRE_DTYPES = {"float8_e4m3fn": "float8_e4m3"}


class Exports:
    """Of one rank. Alone it tells as layers end; in a group the leader tells when the step has ended everywhere."""

    def __init__(self, model: LlamaForCausalLM, place: Place) -> None:
        self.on_pages: OnPages | None = None
        self._layers = list(model.model.layers.values())
        self._is_alone = place.layout.num_devices == 1
        self._stride = max(1, -(-len(self._layers) // _NUM_PARTS))

    @contextmanager
    def watching(self, plan: Plan, cache: KvCache) -> Iterator[None]:
        """Around the forward pass of a plan."""
        if not plan.exports:
            yield
            return
        pages = [page for export in plan.exports for page in export.pages]
        with ExitStack() as hooks:
            for end in range(self._stride, len(self._layers), self._stride):
                layer = self._layers[end - 1]
                hook = self._tell(plan, cache, pages, range(end - self._stride, end))
                hooks.callback(layer.register_forward_hook(hook).remove)
            yield
        rest = (len(self._layers) - 1) // self._stride * self._stride
        self._tell(plan, cache, pages, range(rest, len(self._layers)))()

    def _tell(self, plan: Plan, cache: KvCache, pages: list[int], layers: range) -> Callable[..., None]:
        def tell(*_: object) -> None:
            cache.show(pages, layers)
            if self._is_alone and self.on_pages is not None:
                self.on_pages(plan.exports, layers.start, layers.stop)

        return tell


def make_image(model: LlamaForCausalLM, cache_dtype: str, page_tokens: int, place: Place, num_pages: int) -> PageImage:
    """The image of this rank's pool; `num_pages` without the null page."""
    config = model.config
    dtype = _WIRE_DTYPES.get(cache_dtype, cache_dtype)
    shape = KvShape(config.num_layers, config.num_kv_heads, config.head_dim, dtype, page_tokens)
    first, end = place.layout.stage_range(config.num_layers, place.stage)
    num_heads = model.kv_heads_per_layer[0]
    # A degree above the number of heads holds each of them several times.
    first_head = place.tensor_rank * config.num_kv_heads // place.layout.tensor
    shard = Shard(first, end - first, first_head, num_heads)
    return PageImage.create(shape, shard, num_pages + 1)
