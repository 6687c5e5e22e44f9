"""Which attention serves a replica; chosen once, at start, and logged with the reason."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace_worker.attention.base import AttentionBackend
from headrace_worker.attention.needs import Abilities, AttentionNeeds
from headrace_worker.attention.torch_invariant import TorchInvariantAttention
from headrace_worker.attention.torch_paged import TorchPagedAttention

NAMES = ("auto", "flash_attn", "triton", "torch")


class AttentionError(ValueError):
    """A backend that was named and cannot serve; the text says why, with the numbers."""


@dataclass(frozen=True)
class Candidate:
    """A backend that could be built, or (`absent`) why it is not here."""

    name: str
    abilities: Abilities
    build: Callable[[], AttentionBackend]
    absent: str = ""


@dataclass(frozen=True)
class Chosen:
    """`reason` is for the log."""

    backend: AttentionBackend
    reason: str


def candidates() -> list[Candidate]:
    """In the order in which they are preferred."""
    return [*_flash_candidates(), _triton_candidate(), *_torch_candidates()]


def choose_attention(named: str, needs: AttentionNeeds, offered: list[Candidate] | None = None) -> Chosen:
    """The backend that was named, or with "auto" the first that can serve. Raises AttentionError."""
    offered = candidates() if offered is None else offered
    passed: list[str] = []
    for candidate in offered:
        if named not in ("auto", candidate.name):
            continue
        why_not = [candidate.absent] if candidate.absent else list(candidate.abilities.mismatches(needs))
        if named == "auto" and not why_not and needs.device == "cpu" and candidate.name != "torch":
            why_not = ["it is for cards: on CPU it must be named"]
        if not why_not:
            reason = f"{named} was asked for" if named != "auto" else "the first that can serve"
            return Chosen(candidate.build(), "; ".join([reason, *passed]))
        passed.append(f"not {candidate.name}: {', '.join(why_not)}")
    raise AttentionError("; ".join(passed) or f"{named!r} is none of {', '.join(NAMES)}")


def select_attention(deterministic: bool) -> AttentionBackend:
    """The torch twins: batch-invariant when asked for, else the fast one."""
    return TorchInvariantAttention() if deterministic else TorchPagedAttention()


def _torch_candidates() -> list[Candidate]:
    return [
        Candidate("torch", Abilities(), TorchPagedAttention),
        Candidate("torch", Abilities(deterministic=True), TorchInvariantAttention),
    ]


def _triton_candidate() -> Candidate:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    devices = frozenset({"cuda", "cpu"} if interpreted else {"cuda"})
    abilities = Abilities(devices=devices, capabilities=range(0 if interpreted else 80, 130), largest_head_dim=256)

    def build() -> AttentionBackend:
        from headrace_worker.attention.triton_paged import TritonPagedAttention

        return TritonPagedAttention()

    return Candidate("triton", abilities, build, "" if _has_triton() else "triton is not installed")


def _flash_candidates() -> list[Candidate]:
    if not _has_triton():
        return [_no_flash("triton, which writes its pages, is not installed")]
    from headrace_worker.attention import flash

    found: Mapping[int, flash.FlashLibrary] = flash.find_flash()
    if not found:
        return [_no_flash("neither flash_attn nor flash_attn_interface nor flash_attn.cute can be imported")]

    def offer(library: flash.FlashLibrary) -> Candidate:
        return Candidate("flash_attn", library.abilities, lambda: flash.FlashAttention(library))

    return [offer(library) for library in found.values()]


def _no_flash(why: str) -> Candidate:
    return Candidate("flash_attn", Abilities(), TorchPagedAttention, why)


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
