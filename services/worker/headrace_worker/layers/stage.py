"""Which consecutive layers of a model a rank has (pipeline parallelism). A model is built as if it had them all.

The first stage takes token ids and the last one gives logits; between them hidden states are handed on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import Tensor, nn

Layer = TypeVar("Layer", bound=nn.Module)


class Elsewhere(nn.Module):
    """Stands where another stage has the layer, and hands on what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class Stage:
    """Layers start .. end - 1 of a model; `end` None is its last."""

    start: int = 0
    end: int | None = None

    @property
    def is_first(self) -> bool:
        return self.start == 0

    @property
    def is_last(self) -> bool:
        return self.end is None

    def at_start(self, build: Callable[[], Layer]) -> Layer:
        """What only the first stage has."""
        return build() if self.is_first else cast(Layer, Elsewhere())

    def at_end(self, build: Callable[[], Layer]) -> Layer:
        """What only the last stage has."""
        return build() if self.is_last else cast(Layer, Elsewhere())

    def layers(self, num_layers: int, build: Callable[[int], nn.Module]) -> nn.ModuleDict:
        """This stage's layers, under the numbers that they have in the whole model."""
        own = range(self.start, num_layers if self.end is None else self.end)
        assert len(own) > 0, f"stage {self} of {num_layers} layers is empty"
        return nn.ModuleDict({str(layer): build(layer) for layer in own})

    def place_of(self, layer: int) -> int:
        """A layer's place among those of this stage, by which its KV pages are found."""
        return layer - self.start
