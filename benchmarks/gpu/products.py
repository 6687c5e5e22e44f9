"""Products with fp8 and 4-bit weights: against float64, and beside bfloat16 and torch's own 4-bit product."""

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench, Row
from headrace_worker.kernels.int4_product import int4_product, int4_product_twin
from headrace_worker.kernels.int4_weight import Int4Weight, quantize_groups
from headrace_worker.kernels.quantized_gemm import Fp8Gemm


def measure_products(bench: Bench, can_fp8: bool) -> None:
    """The gate and up projections of the 8B shape, from one row to a prompt."""
    in_size, out_size = (128, 64) if bench.smoke else (4096, 28672)
    weight = torch.randn(out_size, in_size, device=bench.device, dtype=bench.dtype) * in_size**-0.5
    for rows in (1, 3) if bench.smoke else (1, 64, 2048, 16, 255):
        x = torch.randn(rows, in_size, device=bench.device, dtype=bench.dtype)
        plain = bench.seconds(lambda x=x: x @ weight.t())  # type: ignore[misc]
        with bench.part(f"int4, {rows} rows"):
            _int4(bench, x, weight, plain)
        if can_fp8:
            with bench.part(f"fp8, {rows} rows"):
                _fp8(bench, x, weight, plain)
        if not bench.smoke:
            with bench.part(f"torch int4, {rows} rows"):
                _torchs_own(bench, x, out_size, plain)


def _beside(bench: Bench, name: str, taken: float, plain: float) -> None:
    bench.add(Row(f"{name}: time beside bfloat16", taken / plain, "x", note=f"{taken * 1e6:.0f} us"))


def _int4(bench: Bench, x: Tensor, weight: Tensor, plain: float) -> None:
    packed = Int4Weight.pack(*quantize_groups(weight, 128), bench.dtype)
    exact = int4_product_twin(x.double(), packed)
    error = float((int4_product(x, packed).double() - exact).abs().max() / exact.abs().max())
    name = f"int4, {len(x)} rows"
    bench.add(Row(f"{name}: error against float64", error, "of the largest", 0.02, at_most=True))
    _beside(bench, name, bench.seconds(lambda: int4_product(x, packed)), plain)


def _fp8(bench: Bench, x: Tensor, weight: Tensor, plain: float) -> None:
    gemm = Fp8Gemm()
    packed = gemm.pack(weight)
    exact = x.double() @ weight.double().t()
    error = float((gemm.multiply(x, packed, None).double() - exact).abs().max() / exact.abs().max())
    name = f"fp8, {len(x)} rows"
    bench.add(Row(f"{name}: error against float64, rounding included", error, "of the largest", 0.1, at_most=True))
    _beside(bench, name, bench.seconds(lambda: gemm.multiply(x, packed, None)), plain)


def _torchs_own(bench: Bench, x: Tensor, out_size: int, plain: float) -> None:
    """`_weight_int4pack_mm` on random codes, groups of 128."""
    in_size = x.shape[1]
    raw = torch.randint(0, 255, (out_size, in_size // 2), dtype=torch.uint8, device=bench.device)
    codes = torch._convert_weight_to_int4pack(raw, 8)
    scales = torch.ones(in_size // 128, out_size, 2, device=bench.device, dtype=torch.bfloat16)
    taken = bench.seconds(lambda: torch._weight_int4pack_mm(x, codes, 128, scales))
    _beside(bench, f"torch int4, {len(x)} rows", taken, plain)
