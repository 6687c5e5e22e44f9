"""The choice of attention: what is named serves or refuses with numbers; auto takes the first that can."""

import dataclasses

import pytest

from headrace_worker.attention.needs import Abilities, AttentionNeeds
from headrace_worker.attention.registry import AttentionError, Candidate, choose_attention, select_attention
from headrace_worker.attention.torch_paged import TorchPagedAttention

NEEDS = AttentionNeeds(
    device="cuda", capability=90, dtype="bfloat16", kv_dtype="bfloat16", page_tokens=16, head_dim=128
)
CUDA = frozenset({"cuda"})


class Flash(TorchPagedAttention):
    name = "flash"


class Triton(TorchPagedAttention):
    name = "ours"


OFFERED = [
    Candidate("flash_attn", Abilities(devices=CUDA, page_multiple=256, fp8_kv=False), Flash),
    Candidate("triton", Abilities(devices=CUDA, capabilities=range(80, 130)), Triton),
    Candidate("torch", Abilities(), TorchPagedAttention),
    Candidate("torch", Abilities(deterministic=True), lambda: select_attention(True)),
]


def choose(named: str, **changes: object) -> str:
    return choose_attention(named, dataclasses.replace(NEEDS, **changes), OFFERED).backend.name  # type: ignore[arg-type]


def test_auto_takes_the_first_that_can_serve_and_says_why_not_the_others() -> None:
    assert choose("auto", page_tokens=512) == "flash"
    chosen = choose_attention("auto", NEEDS, OFFERED)
    assert chosen.backend.name == "ours"
    assert "not flash_attn: its pages are multiples of 256 tokens, page_tokens is 16" in chosen.reason


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"page_tokens": 128}, "multiples of 256 tokens, page_tokens is 128"),
        ({"page_tokens": 256, "kv_dtype": "float8_e4m3fn"}, "does not read fp8 KV"),
        ({"page_tokens": 256, "deterministic": True}, "depend on the batch"),
        ({"page_tokens": 256, "device": "cpu", "capability": 0}, "runs on cuda, the device is cpu"),
    ],
)
def test_what_is_named_and_mismatched_refuses_with_numbers(changes: dict[str, object], why: str) -> None:
    with pytest.raises(AttentionError, match=why):
        choose("flash_attn", **changes)


def test_a_card_that_is_too_old_is_named() -> None:
    with pytest.raises(AttentionError, match=r"capability 8\.0 to 12\.9, the card has 7\.5"):
        choose("triton", capability=75)


def test_what_is_named_and_absent_refuses() -> None:
    with pytest.raises(AttentionError, match="it is not installed"):
        choose_attention("flash_attn", NEEDS, [Candidate("flash_attn", Abilities(), Flash, "it is not installed")])


def test_deterministic_is_served_by_the_invariant_twin_alone() -> None:
    assert choose("auto", deterministic=True) == choose("torch", deterministic=True) == "torch-invariant"


def test_kernels_run_on_cpu_only_when_they_are_named() -> None:
    on_cpu = dataclasses.replace(NEEDS, device="cpu", capability=0)
    offered = [Candidate("triton", Abilities(), Triton), *OFFERED[2:]]
    assert choose_attention("auto", on_cpu, offered).backend.name == "torch-paged"
    assert choose_attention("triton", on_cpu, offered).backend.name == "ours"


def test_this_machine_has_a_choice() -> None:
    """The real candidates, whatever is installed here."""
    on_cpu = dataclasses.replace(NEEDS, device="cpu", capability=0)
    chosen = choose_attention("auto", on_cpu)
    assert chosen.backend.name == "torch-paged" and "not triton" in chosen.reason
