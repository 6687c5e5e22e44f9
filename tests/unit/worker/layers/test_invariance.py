"""Batch-invariant mode: a row's bits do not depend on how many rows share its step, or on its place among them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.kernels.gemm import (
    MAX_BATCHED_ROWS,
    InvariantGemm,
    PanelGemm,
    PlainGemm,
    TransposedGemm,
    assert_row_invariance,
)
from headrace_worker.kernels.row_ops import TorchRows, invariant_silu
from headrace_worker.layers.norm import RMSNorm
from headrace_worker.layers.setting import LayerSetting

SIZES = [(64, 96), (20, 37), (576, 192)]


@pytest.mark.parametrize(("in_size", "out_size"), SIZES)
@given(num_rows=st.integers(1, 50), data=st.data())
def test_a_product_row_is_the_same_bits_anywhere(
    in_size: int, out_size: int, num_rows: int, data: st.DataObject
) -> None:
    gemm = InvariantGemm()
    generator = torch.Generator().manual_seed(0)
    packed = gemm.pack(torch.randn(out_size, in_size, generator=generator))
    rows = torch.randn(num_rows, in_size, generator=generator)
    place = data.draw(st.integers(0, num_rows - 1))
    alone = gemm.multiply(rows[place : place + 1], packed, None)[0]
    assert torch.equal(gemm.multiply(rows, packed, None)[place], alone)


@pytest.mark.parametrize(("in_size", "out_size"), SIZES)
def test_the_proof_at_load_passes_for_sound_products(in_size: int, out_size: int) -> None:
    assert_row_invariance(torch.randn(in_size, out_size, generator=torch.Generator().manual_seed(1)))


def test_the_proof_at_load_fails_when_a_place_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    def uneven(
        self: InvariantGemm, x_TI: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        out = x_TI @ packed
        return out + torch.arange(out.shape[0])[:, None] * 1e-6

    monkeypatch.setattr(InvariantGemm, "multiply", uneven)
    with pytest.raises(AssertionError, match="depends on its place"):
        assert_row_invariance(torch.ones(8, 8))


@pytest.mark.parametrize(
    "gemm", [PlainGemm(), TransposedGemm(), PanelGemm(), InvariantGemm()], ids=lambda gemm: gemm.name
)
@pytest.mark.parametrize("num_rows", [1, 16, 33])
def test_every_gemm_is_a_linear_layer(gemm: PlainGemm, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(37, 20, generator=generator), torch.randn(37, generator=generator)
    rows = torch.randn(num_rows, 20, generator=generator)
    expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(gemm.multiply(rows, gemm.pack(weight), bias), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 16, MAX_BATCHED_ROWS, MAX_BATCHED_ROWS + 1])
@pytest.mark.parametrize("out_size", [768, 960, 3072, 1000, 8192])
def test_a_wide_weight_in_panels_multiplies_as_a_linear_layer(num_rows: int, out_size: int) -> None:
    generator = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(out_size, 20, generator=generator), torch.randn(out_size, generator=generator)
    rows = torch.randn(num_rows, 20, generator=generator)
    packed = PanelGemm().pack(weight)
    assert packed.dim() == (3 if out_size != 1000 else 2), "1,000 columns are no whole panels"
    expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(PanelGemm().multiply(rows, packed, bias), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [127, 128, 200, 517])
@pytest.mark.parametrize("has_bias", [True, False])
def test_many_rows_times_a_narrow_weight_multiply_as_a_linear_layer(num_rows: int, has_bias: bool) -> None:
    """In blocks of rows, with and without rows left over."""
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(48, 20, generator=generator), torch.randn(48, generator=generator)
    rows = torch.randn(num_rows, 20, generator=generator)
    expected = rows.double() @ weight.double().t() + (bias.double() if has_bias else 0.0)
    got = PanelGemm().multiply(rows, PanelGemm().pack(weight), bias if has_bias else None)
    torch.testing.assert_close(got, expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_rows", [1, 16, 200])
@pytest.mark.parametrize(("out_size", "num_panels"), [(3072, 8), (1152, 3), (64, 0)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_gated_product_in_panels_is_the_flat_one(
    num_rows: int, out_size: int, num_panels: int, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(6)
    weight, bias = torch.randn(out_size, 20, generator=generator), torch.randn(out_size, generator=generator)
    rows = torch.randn(num_rows, 20, generator=generator)
    gemm, bias_or_none = PanelGemm(), bias if has_bias else None
    packed = gemm.pack(weight)
    assert (packed.shape[0] if packed.dim() == 3 else 0) == num_panels
    both = gemm.multiply_in_panels(rows, packed, bias_or_none)
    in_panels = num_panels % 2 == 0 and num_panels > 0 and num_rows > 1
    assert both.dim() == (3 if in_panels else 2), "an odd number of panels has none between gates and ups"
    flat = torch.nn.functional.linear(rows, weight, bias_or_none)
    expected = TorchRows().silu_mul(flat.clone())
    torch.testing.assert_close(TorchRows().silu_mul(both), expected, rtol=1e-4, atol=1e-4)


@given(num_elements=st.integers(1, 70))
def test_silu_is_the_same_bits_at_the_end_of_a_vector(num_elements: int) -> None:
    values = torch.linspace(-90, 90, 1001)
    assert torch.equal(invariant_silu(values[:num_elements].clone()), invariant_silu(values)[:num_elements])


def test_invariant_silu_is_silu() -> None:
    values = torch.cat([torch.linspace(-90, 90, 1001), torch.tensor([-1e4, 1e4, 0.0])])
    torch.testing.assert_close(invariant_silu(values), torch.nn.functional.silu(values))


@given(num_rows=st.integers(1, 40))
def test_a_normed_row_is_the_same_bits_in_any_batch(num_rows: int) -> None:
    norm = RMSNorm(48, 1e-5, LayerSetting(gemm=InvariantGemm()))
    norm.weight.fill_(1.5)
    rows = torch.randn(num_rows, 48, generator=torch.Generator().manual_seed(3))
    assert torch.equal(norm(rows)[-1], norm(rows[-1:])[0])
