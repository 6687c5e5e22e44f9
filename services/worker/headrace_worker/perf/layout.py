"""A tensor-parallel x pipeline-parallel split of one model, checked against its dimensions. Knows no bytes or times."""

from dataclasses import dataclass

from headrace_worker.perf.errors import LayoutError
from headrace_worker.perf.model_shape import ModelShape


@dataclass(frozen=True)
class Layout:
    """`tensor` ranks share every layer; `pipeline` stages hold consecutive layers."""

    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        if self.tensor < 1:
            raise LayoutError("tp", f"must be at least 1, not {self.tensor}")
        if self.pipeline < 1:
            raise LayoutError("pp", f"must be at least 1, not {self.pipeline}")

    @property
    def num_devices(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline

    def check(self, shape: ModelShape) -> None:
        """`LayoutError` naming the degree and both numbers when the model cannot be split this way."""
        for dimension, size in (("query heads", shape.num_heads), ("intermediate columns", shape.intermediate_size)):
            if size % self.tensor:
                raise LayoutError("tp", f"{self.tensor} does not divide {size} {dimension} of {shape.name}")
        if shape.num_kv_heads % self.tensor and self.tensor % shape.num_kv_heads:
            raise LayoutError("tp", f"{self.tensor} neither divides nor is a multiple of {shape.num_kv_heads} KV heads")
        if self.pipeline > shape.num_layers:
            raise LayoutError(
                "pp", f"{self.pipeline} stages need more than the {shape.num_layers} layers of {shape.name}"
            )

    def kv_heads_per_rank(self, shape: ModelShape) -> int:
        """KV heads held by each rank; heads are replicated when there are more ranks than heads."""
        return max(1, shape.num_kv_heads // self.tensor)

    def stage_layers(self, shape: ModelShape) -> tuple[int, ...]:
        """Layers per stage; the first stages take the remainder, since the last one also holds the output matrix."""
        ranges = [self.stage_range(shape.num_layers, stage) for stage in range(self.pipeline)]
        return tuple(end - start for start, end in ranges)

    def stage_range(self, num_layers: int, stage: int) -> tuple[int, int]:
        """The first layer of a stage, and the first one behind it."""
        base, extra = divmod(num_layers, self.pipeline)
        return stage * base + min(stage, extra), (stage + 1) * base + min(stage + 1, extra)


def is_possible(shape: ModelShape, layout: Layout) -> bool:
    """Whether `layout.check(shape)` would pass."""
    try:
        layout.check(shape)
    except LayoutError:
        return False
    return True
