"""A place in a model for one checkpoint tensor. The layer that shards it decides which part it keeps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class WeightSlot:
    """`fill` takes the full checkpoint tensor, of exactly `shape`, and copies this rank's part of it."""

    shape: tuple[int, ...]
    fill: Callable[[Tensor], None]


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


def copy_rows(target: Tensor, start: int, target_start: int, num_rows: int) -> Callable[[Tensor], None]:
    """A `fill` that copies rows start .. start + num_rows to target rows target_start onwards."""

    def fill(loaded: Tensor) -> None:
        target[target_start : target_start + num_rows].copy_(loaded[start : start + num_rows])

    return fill


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
