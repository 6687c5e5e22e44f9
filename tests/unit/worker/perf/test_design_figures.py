"""Every reference figure of the ledger: 70e9 parameters, 80 layers, 8 KV heads, head width 128, 2-byte KV."""

import pytest

from headrace_worker.perf.cards import GIB, card_named
from headrace_worker.perf.layout import Layout
from headrace_worker.perf.memory import MemoryDemand, kv_bytes_per_sequence, kv_bytes_per_token, weight_bytes
from headrace_worker.perf.model_shape import BUILT_IN_MODELS
from headrace_worker.perf.precision import kv_precision, weight_precision

MODEL = BUILT_IN_MODELS["llama-3.1-70b"]
H100 = card_named("h100-80gib")
KV_2_BYTES = kv_precision("fp16")


def demand(precision: str, kv: str = "fp16") -> MemoryDemand:
    return MemoryDemand(MODEL, weight_precision(precision), kv_precision(kv), max_sequence_tokens=8192)


def test_kv_of_one_token() -> None:
    assert kv_bytes_per_token(MODEL, KV_2_BYTES) == 327_680


@pytest.mark.parametrize(("num_tokens", "gib"), [(2048, 0.625), (8192, 2.5)])
def test_kv_of_one_sequence(num_tokens: int, gib: float) -> None:
    assert kv_bytes_per_sequence(MODEL, KV_2_BYTES, num_tokens) == gib * GIB


@pytest.mark.parametrize(("precision", "num_bytes"), [("fp16", 140e9), ("bf16", 140e9), ("fp8", 70e9), ("int4", 35e9)])
def test_weight_bytes(precision: str, num_bytes: float) -> None:
    assert weight_bytes(MODEL, weight_precision(precision)) == num_bytes


@pytest.mark.parametrize(
    ("precision", "tensor", "num_reservations"),
    [("fp16", 1, 0), ("fp16", 2, 8), ("fp8", 1, 4), ("int4", 1, 17)],
)
def test_full_reservations_with_a_reserve_of_4_gib_per_device(
    precision: str, tensor: int, num_reservations: int
) -> None:
    assert demand(precision).full_reservations(H100, Layout(tensor), 4 * GIB) == num_reservations


def test_fp16_weights_alone_exceed_one_device_and_fit_two() -> None:
    one = demand("fp16").per_device(H100, Layout(1), 4 * GIB)
    two = demand("fp16").per_device(H100, Layout(2), 4 * GIB)
    assert one[0].pool_bytes < 0 < two[0].pool_bytes


def test_the_fifth_reservation_does_not_fit_beside_four() -> None:
    [device] = demand("fp8").per_device(H100, Layout(1), 4 * GIB)
    assert 4 * device.kv_bytes_per_sequence <= device.pool_bytes < 5 * device.kv_bytes_per_sequence


def test_the_reserve_is_taken_from_every_device() -> None:
    """4 GiB for the pair (2 GiB each) would leave room for ten."""
    assert demand("fp16").full_reservations(H100, Layout(2), 2 * GIB) == 10
    assert demand("fp16").full_reservations(H100, Layout(2), 4 * GIB) == 8


def test_kv_stays_two_bytes_whatever_the_weights() -> None:
    assert demand("int4").full_reservations(H100, Layout(1), 4 * GIB) == 17
    assert demand("int4", kv="fp8").full_reservations(H100, Layout(1), 4 * GIB) == 34
