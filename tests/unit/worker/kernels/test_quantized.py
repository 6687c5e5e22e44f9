"""4-bit and 8-bit products and their rounding against twins, under the interpreter."""

import pytest
import torch

from headrace_worker.kernels.int4_product import int4_product, int4_product_twin
from headrace_worker.kernels.int4_weight import Int4Weight, codes_on_grid, quantize_groups
from headrace_worker.kernels.kv_write import largest_of_rows
from headrace_worker.kernels.quantize_rows import quantize_rows, quantize_rows_twin
from headrace_worker.kernels.quantized_gemm import Fp8Twin, Grid, Int4Twin, fp8_codes


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int4_weight(out_size: int, in_size: int, group: int, dtype: torch.dtype) -> Int4Weight:
    return Int4Weight.pack(*quantize_groups(noise(out_size, in_size, seed=1), group), dtype)


@pytest.mark.parametrize(("rows", "in_size", "out_size", "group"), [(1, 64, 70, 16), (17, 128, 64, 64), (0, 64, 8, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_int4_product(rows: int, in_size: int, out_size: int, group: int, dtype: torch.dtype) -> None:
    weight = int4_weight(out_size, in_size, group, dtype)
    x = noise(rows, in_size, dtype=dtype)
    exact = dtype == torch.float32
    rtol, atol = (1e-4, 1e-4) if exact else (1e-2, 5e-2)
    torch.testing.assert_close(int4_product(x, weight), int4_product_twin(x, weight), rtol=rtol, atol=atol)


def test_int4_product_is_split_along_its_inputs() -> None:
    weight = int4_weight(16, 512, 64, torch.float32)
    x = noise(2, 512)
    torch.testing.assert_close(int4_product(x, weight), int4_product_twin(x, weight), rtol=1e-4, atol=1e-4)


def test_groups_round_to_nearest_and_codes_come_back_from_the_weight() -> None:
    weight = noise(24, 64)
    codes, scales, zeros = quantize_groups(weight, 16)
    back = Int4Weight.pack(codes, scales, zeros, torch.float32).dequantize().t()
    step = scales.repeat_interleave(16, dim=1)
    assert float(((back - weight).abs() / step).max()) <= 1.0 and codes.max() <= 15
    assert torch.equal(codes_on_grid(back.to(torch.bfloat16), scales, zeros), codes)


@pytest.mark.parametrize(("rows", "size"), [(0, 64), (3, 100), (2, 576)])
def test_rows_to_e4m3(rows: int, size: int) -> None:
    x = noise(rows, size) * 30
    if rows:
        x[0] = 0
    (codes, scales), (wanted, wanted_scales) = quantize_rows(x), quantize_rows_twin(x)
    torch.testing.assert_close(scales, wanted_scales)
    steps = codes.view(torch.uint8).to(torch.int16) - wanted.view(torch.uint8).to(torch.int16)
    # The interpreter truncates, and loses the carry into the next power of two: few codes are more than one away.
    assert not rows or (steps.abs() > 1).float().mean() < 0.04


@pytest.mark.skipif(torch.__version__ < "2.12", reason="on a CPU torch multiplies without scales of rows")
def test_the_fp8_twin_computes_what_torchs_product_computes() -> None:
    x, weight = noise(5, 64), noise(32, 64, seed=2)
    twin = Fp8Twin()
    got = twin.multiply(x, twin.pack(weight), None)
    codes, scales = fp8_codes(weight, None)
    x_codes, x_scales = quantize_rows_twin(x)
    wanted = torch._scaled_mm(
        x_codes, codes.t(), scale_a=x_scales, scale_b=scales.t().contiguous(), out_dtype=torch.bfloat16
    )
    torch.testing.assert_close(got, wanted.float(), rtol=1e-2, atol=2e-2)


def test_a_checkpoints_grid_is_kept() -> None:
    weight = noise(8, 32)
    codes, scales, zeros = quantize_groups(weight, 16)
    meant = Int4Weight.pack(codes, scales, zeros, torch.float32).dequantize().t().contiguous()
    twin = Int4Twin()
    identity = torch.eye(32)
    torch.testing.assert_close(twin.multiply(identity, twin.pack_on(meant, Grid(scales, zeros)), None), meant.t())


def test_ranks_that_share_rows_quantize_them_as_one_would() -> None:
    """What they exchange is the largest of each row: codes, scales and weight codes are parts of the whole's."""
    x, weight = noise(4, 128) * torch.tensor([[1.0], [0.0], [30.0], [1e-3]]), noise(32, 128, seed=2)
    (codes, scales), (weight_codes, weight_scales) = quantize_rows_twin(x), fp8_codes(weight, None)
    largest, weight_largest = largest_of_rows(x), largest_of_rows(weight)
    for part in (slice(0, 64), slice(64, 128)):
        for quantize in (quantize_rows, quantize_rows_twin):
            got, got_scales = quantize(x[:, part], largest.clone())
            assert torch.equal(got_scales, scales)
            if quantize is quantize_rows_twin:  # the interpreter rounds otherwise
                assert torch.equal(got.float(), codes[:, part].float())
        got, got_scales = fp8_codes(weight[:, part], None, lambda own: torch.maximum(own, weight_largest))
        assert torch.equal(got.float(), weight_codes[:, part].float()) and torch.equal(got_scales, weight_scales)
