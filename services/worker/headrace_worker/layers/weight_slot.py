"""A place in a model for one checkpoint tensor. The layer that shards it decides which part it keeps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn


class Region(NamedTuple):
    """Indices start .. start + size - 1 of one dimension: the part of a checkpoint tensor that a rank holds."""

    dim: int
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        return tensor.narrow(*self)


@dataclass(frozen=True)
class WeightSlot:
    """`fill` takes this rank's `region` (None: the whole) of a checkpoint tensor of exactly `shape` and keeps it."""

    shape: tuple[int, ...]
    fill: Callable[[Tensor], None]
    region: Region | None = None

    def cut(self, whole: Tensor) -> Tensor:
        """What `fill` wants of the whole tensor."""
        return whole if self.region is None else self.region.of(whole)


class WeightLayer(nn.Module):
    """A layer that holds weights. Names are relative to the layer's parent, as checkpoints spell them."""

    def slots(self, own_name: str) -> dict[str, WeightSlot]:
        """Checkpoint names, relative to the parent module -> slots."""
        raise NotImplementedError

    def pack(self) -> None:
        """Called once after every slot is filled; layers that multiply prepare their weight here."""


def copy_into(target: Tensor) -> Callable[[Tensor], None]:
    """A `fill` that copies the whole tensor, converting dtype and device."""

    def fill(loaded: Tensor) -> None:
        target.copy_(loaded)

    return fill


def rows_slot(shape: tuple[int, ...], target: Tensor, start: int, num_rows: int) -> WeightSlot:
    """A slot for rows start .. start + num_rows - 1 of a tensor of `shape`, which become the rows of `target`."""
    assert target.shape == (num_rows, *shape[1:]), f"{num_rows} rows of {shape} do not fit {tuple(target.shape)}"
    return WeightSlot(shape, copy_into(target), Region(0, start, num_rows))


def weight_layers(model: nn.Module) -> Iterator[tuple[str, WeightLayer]]:
    """Dotted path and layer, for every weight layer of a model."""
    for path, module in model.named_modules():
        if isinstance(module, WeightLayer):
            yield path, module


def collect_slots(model: nn.Module) -> dict[str, WeightSlot]:
    """Every checkpoint tensor that a model needs, by its full name."""
    slots: dict[str, WeightSlot] = {}
    for path, layer in weight_layers(model):
        parent, _, own_name = path.rpartition(".")
        for name, slot in layer.slots(own_name).items():
            full_name = f"{parent}.{name}" if parent else name
            assert full_name not in slots, f"two layers claim {full_name}"
            slots[full_name] = slot
    return slots
