"""What layouts do under a load: TTFT and time per token by concurrency, the frontier, cost, and the cheapest that keeps
an SLO. Pure; arithmetic of means on the roofline (`prediction`), no queueing beyond it: that is the simulator's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace_worker.perf.attention import Prefill
from headrace_worker.perf.errors import PerfError
from headrace_worker.perf.layout import Layout, is_possible
from headrace_worker.perf.memory import MemoryDemand
from headrace_worker.perf.model_shape import ModelShape
from headrace_worker.perf.plan import MAX_PIPELINE, PlanRequest, reserve_bytes
from headrace_worker.perf.prediction import ClosedLoop, chunk_tokens_of, predict_closed_loop, prefill_time_s
from headrace_worker.perf.resources import Resource
from headrace_worker.perf.step import Roofline, StepLoad

_MOST_CONCURRENCY = 512
# Deeper pipelines only add latency to a load that fewer stages hold.
_MOST_STAGES = 4
_MOST_WISHED = 1e9
_POSITIVE = ("prompt_tokens", "output_tokens")
_OPTIONAL = ("ttft_s", "inter_token_s", "rps", "price_per_gpu_hour")


@dataclass(frozen=True)
class Wish:
    """The load and what its users shall get; None: not asked for. `rps` is of the whole fleet."""

    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None = None
    inter_token_s: float | None = None
    rps: float | None = None
    price_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise PerfError(name, f"must be at least 1, not {getattr(self, name)}")
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST_WISHED:
                raise PerfError(name, f"must be above 0 and at most {_MOST_WISHED:g}, not {value}")

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens that the whole fleet is asked for."""
        return None if self.rps is None else self.rps * self.output_tokens

    def check(self, shape: ModelShape) -> None:
        """A worker would refuse every one of these requests if it has not as many positions."""
        if self.prompt_tokens + self.output_tokens > shape.max_context:
            words = f"{self.prompt_tokens} and {self.output_tokens} of output are more than the"
            raise PerfError("prompt_tokens", f"{words} {shape.max_context} positions of {shape.name}")


@dataclass(frozen=True)
class Point:
    """One replica with `concurrency` users; tokens are output tokens per second."""

    concurrency: int
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    num_devices: int

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.tokens_per_s / self.num_devices

    @property
    def tokens_per_s_per_user(self) -> float:
        return 1 / self.tpot_s

    def meets(self, wish: Wish) -> bool:
        late = wish.ttft_s is not None and self.ttft_s > wish.ttft_s
        slow = wish.inter_token_s is not None and self.tpot_s > wish.inter_token_s
        return not (late or slow)

    def cost_per_million(self, wish: Wish) -> float | None:
        """Money per million useful tokens at this point, all of them useful."""
        if wish.price_per_gpu_hour is None:
            return None
        return wish.price_per_gpu_hour * self.num_devices / 3600 / self.tokens_per_s * 1e6


@dataclass(frozen=True)
class Option:
    """One layout under the wish: `best` is the point of most throughput that keeps it, None where none does.

    `at_load`: what its replicas do when they share the wished rate, with so few users as bring it; without a rate, the
    best. `prefill_s` is the prompt alone on an idle replica. `why_not` says in words what fails, empty for one that
    serves.
    """

    layout: Layout
    fits: bool
    points: tuple[Point, ...]
    best: Point | None
    prefill_s: float
    binding: Resource
    why_not: str
    num_replicas: int = 1
    at_load: Point | None = None

    @property
    def num_devices(self) -> int:
        return self.layout.num_devices * self.num_replicas

    @property
    def most_tokens_per_s(self) -> float:
        """What all of its replicas deliver at their best."""
        return self.best.tokens_per_s * self.num_replicas if self.best is not None else 0.0

    def tokens_per_s(self, wish: Wish) -> float:
        """What they deliver: the wished rate, without one their best."""
        return self.most_tokens_per_s if wish.tokens_per_s is None else wish.tokens_per_s

    def busy(self, wish: Wish) -> float:
        """The share of what they could deliver that they do."""
        return self.tokens_per_s(wish) / self.most_tokens_per_s

    def cost_per_hour(self, wish: Wish) -> float | None:
        """Money for all devices, busy or not."""
        return None if wish.price_per_gpu_hour is None else wish.price_per_gpu_hour * self.num_devices

    def cost_per_million(self, wish: Wish) -> float | None:
        """Money per million useful tokens, with what idle devices cost."""
        per_hour = self.cost_per_hour(wish)
        return None if per_hour is None else per_hour / 3600 / self.tokens_per_s(wish) * 1e6


def consider(request: PlanRequest, layout: Layout, wish: Wish) -> Option:
    """One layout."""
    demand = MemoryDemand(request.shape, request.weights, request.kv, wish.prompt_tokens + wish.output_tokens)
    reserve = reserve_bytes(request, layout)
    held = demand.full_reservations(request.card, layout, reserve)
    roofline = Roofline(request.shape, request.weights, request.kv, request.card, layout)
    prefill_s = prefill_time_s(roofline, wish.prompt_tokens)
    if held < 1:
        words = "does not fit: no sequence of prompt and output has room beside the weights"
        return Option(layout, False, (), None, prefill_s, Resource.HBM_CAPACITY, words)
    points = tuple(_point(roofline, wish, concurrency, held) for concurrency in _concurrencies(held))
    good = [point for point in points if point.meets(wish)]
    best = max(good, key=lambda point: point.tokens_per_s, default=None)
    if best is None:
        why_not, binding = _failure(roofline, wish, points[0], prefill_s)
        return Option(layout, True, points, None, prefill_s, binding, why_not)
    binding, num_replicas = _binding(roofline, wish, best, held), _replicas(best, wish)
    at_load = _at_load(roofline, wish, best, num_replicas, held)
    return Option(layout, True, points, best, prefill_s, binding, "", num_replicas, at_load)


def recommend(request: PlanRequest, wish: Wish) -> tuple[Option, ...]:
    """Every layout of the card, those that keep the wish first, the cheapest of them (fewest devices a token) first.

    Of as many devices for a rate, those with the most room left. PerfError for requests longer than the model can be.
    """
    wish.check(request.shape)
    stages = range(1, min(MAX_PIPELINE, _MOST_STAGES) + 1)
    layouts = (Layout(tensor, pipeline) for pipeline in stages for tensor in range(1, request.card.max_fast_group + 1))
    options = [consider(request, layout, wish) for layout in layouts if is_possible(request.shape, layout)]
    return tuple(sorted(options, key=lambda option: _rank(option, wish)))


def frontier(options: Sequence[Option]) -> tuple[tuple[Layout, Point], ...]:
    """Points that no other beats both in throughput per device and in tokens per second for a user, by user speed."""
    points = [(option.layout, point) for option in options for point in option.points]
    points.sort(key=lambda pair: (-pair[1].tokens_per_s_per_user, -pair[1].tokens_per_s_per_gpu))
    kept: list[tuple[Layout, Point]] = []
    for layout, point in points:
        if not kept or point.tokens_per_s_per_gpu > kept[-1][1].tokens_per_s_per_gpu:
            kept.append((layout, point))
    return tuple(kept)


def _concurrencies(held: int) -> list[int]:
    most = min(held, _MOST_CONCURRENCY)
    powers = [2**exponent for exponent in range(int(math.log2(most)) + 1)]
    between = [each + each // 2 for each in powers if each >= 2 and each + each // 2 <= most]
    return sorted({*powers, *between, most})


def _point(roofline: Roofline, wish: Wish, concurrency: int, held: int) -> Point:
    load = ClosedLoop(wish.prompt_tokens, wish.output_tokens, concurrency)
    found = predict_closed_loop(roofline, load, held)
    return Point(concurrency, found.ttft_s, found.tpot_s, found.output_tokens_per_s, roofline.layout.num_devices)


def _at_load(roofline: Roofline, wish: Wish, best: Point, num_replicas: int, held: int) -> Point:
    """The fewest users of a replica that bring its part of the wished rate."""
    if wish.tokens_per_s is None:
        return best
    part = wish.tokens_per_s / num_replicas
    low, point = 0, best
    while point.concurrency - low > 1:
        middle = _point(roofline, wish, (low + point.concurrency) // 2, held)
        if middle.tokens_per_s < part:
            low = middle.concurrency
        else:
            point = middle
    return point


def _failure(roofline: Roofline, wish: Wish, alone: Point, prefill_s: float) -> tuple[str, Resource]:
    """Why not even one user alone is served, and what it would take more of."""
    if wish.ttft_s is not None and alone.ttft_s > wish.ttft_s:
        words = (
            f"fits in memory but misses the TTFT budget even when idle: {prefill_s * 1e3:.0f} ms of prefill for "
            f"{wish.prompt_tokens:,} tokens, {wish.ttft_s * 1e3:.0f} ms allowed"
        )
        chunk = Prefill(min(wish.prompt_tokens, chunk_tokens_of(roofline.layout)))
        return words, roofline.step(StepLoad((chunk,))).binding(0.0, 0.0).resource
    assert wish.inter_token_s is not None, "a budget that is not there is not missed"
    words = (
        f"fits in memory but misses the inter-token budget even when idle: {alone.tpot_s * 1e3:.1f} ms a token, "
        f"{wish.inter_token_s * 1e3:.1f} ms allowed"
    )
    return words, roofline.step(StepLoad((), 1, wish.prompt_tokens)).binding(0.0, 0.0).resource


def _binding(roofline: Roofline, wish: Wish, best: Point, held: int) -> Resource:
    """What stops one user more: memory if there is no room, else what the step that misses its budget uses most."""
    if best.concurrency >= held:
        return Resource.HBM_CAPACITY
    context = wish.prompt_tokens + wish.output_tokens // 2
    late = wish.ttft_s is not None and best.ttft_s > 0.7 * wish.ttft_s
    chunk = (Prefill(min(wish.prompt_tokens, chunk_tokens_of(roofline.layout))),) if late else ()
    # A pipeline's step has its share of the users.
    share = -(-best.concurrency // roofline.layout.pipeline)
    load = StepLoad(chunk, share, share * context)
    return roofline.step(load).binding(best.concurrency / held, (best.concurrency + 1) / held).resource


def _replicas(best: Point, wish: Wish) -> int:
    if wish.rps is None:
        return 1
    return math.ceil(wish.rps / (best.tokens_per_s / wish.output_tokens))


def _rank(option: Option, wish: Wish) -> tuple[bool, float, float]:
    if option.best is None:
        return (True, float(not option.fits), option.layout.num_devices)
    if wish.rps is not None:
        return (False, option.num_devices, -option.most_tokens_per_s)
    return (False, 1 / option.best.tokens_per_s_per_gpu, option.layout.num_devices)
