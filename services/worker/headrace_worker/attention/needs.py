"""What a replica needs of attention, and what a backend can do: compared once, at start. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AttentionNeeds:
    """Types by torch's names; `capability` is the card's, times ten (90 for 9.0), 0 on CPU."""

    device: str
    capability: int
    dtype: str
    kv_dtype: str
    page_tokens: int
    head_dim: int
    windowed: bool = False
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """Of one backend. Empty sets mean anything."""

    page_multiple: int = 1
    """Pages must be a multiple of so many tokens."""
    devices: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    fp8_kv: bool = True
    capabilities: range = range(10_000)
    largest_head_dim: int = 10_000
    head_dim_multiple: int = 1
    windows: bool = True
    deterministic: bool = False

    def mismatches(self, needs: AttentionNeeds) -> Iterator[str]:
        """Why it cannot serve these needs, with the numbers; nothing if it can."""
        if self.devices and needs.device not in self.devices:
            yield f"it runs on {' and '.join(sorted(self.devices))}, the device is {needs.device}"
        elif needs.capability not in self.capabilities:
            first, last = self.capabilities.start / 10, (self.capabilities.stop - 1) / 10
            yield f"it is for compute capability {first} to {last}, the card has {needs.capability / 10}"
        if needs.page_tokens % self.page_multiple:
            yield f"its pages are multiples of {self.page_multiple} tokens, page_tokens is {needs.page_tokens}"
        if self.dtypes and needs.dtype not in self.dtypes:
            yield f"it computes in {' and '.join(sorted(self.dtypes))}, precision is {needs.dtype}"
        if needs.kv_dtype == "float8_e4m3fn" and not self.fp8_kv:
            yield "it does not read fp8 KV"
        if needs.head_dim > self.largest_head_dim or needs.head_dim % self.head_dim_multiple:
            known = f"multiples of {self.head_dim_multiple} up to {self.largest_head_dim}"
            yield f"its heads are {known} wide, the model's {needs.head_dim}"
        if needs.windowed and not self.windows:
            yield "it has no sliding window, the model has"
        if needs.deterministic and not self.deterministic:
            yield "its results depend on the batch, and deterministic asks for others"
