"""Products with fp8 and 4-bit weights: against float64, and beside bfloat16 and torch's own 4-bit product."""

import torch

from benchmarks.gpu.bench import Bench, Row
from headrace_worker.kernels.int4_product import int4_product, int4_product_twin
from headrace_worker.kernels.int4_weight import Int4Weight, quantize_groups
from headrace_worker.kernels.quantized_gemm import Fp8Gemm


def main() -> None:
    bench = Bench("products")
    in_size, out_size = (128, 64) if bench.smoke else (4096, 28672)
    weight = torch.randn(out_size, in_size, device=bench.device, dtype=bench.dtype) * in_size**-0.5
    packed = Int4Weight.pack(*quantize_groups(weight, 128), bench.dtype)
    fp8 = Fp8Gemm()
    codes = fp8.pack(weight)
    for rows in (1, 3) if bench.smoke else (1, 16, 64, 255, 2048):
        x = torch.randn(rows, in_size, device=bench.device, dtype=bench.dtype)
        exact = int4_product_twin(x.double(), packed)
        error = float((int4_product(x, packed).double() - exact).abs().max() / exact.abs().max())
        bench.add(Row(f"int4, {rows} rows: error against float64", error, "of the largest", 0.02, at_most=True))
        plain = bench.seconds(lambda x=x: x @ weight.t())  # type: ignore[misc]
        ours = bench.seconds(lambda x=x: int4_product(x, packed))  # type: ignore[misc]
        bench.add(Row(f"int4, {rows} rows: time beside bfloat16", ours / plain, "x"))
        if bench.smoke:
            continue
        _torchs_own(bench, x, plain)
        if torch.cuda.get_device_capability() >= (8, 9):
            taken = bench.seconds(lambda x=x: fp8.multiply(x, codes, None))  # type: ignore[misc]
            bench.add(Row(f"fp8, {rows} rows: time beside bfloat16", taken / plain, "x"))


def _torchs_own(bench: Bench, x: torch.Tensor, plain: float) -> None:
    """`_weight_int4pack_mm` on random codes, groups of 128."""
    out_size, in_size = 28672, x.shape[1]
    name = f"torch int4, {x.shape[0]} rows: time beside bfloat16"
    try:
        raw = torch.randint(0, 255, (out_size, in_size // 2), dtype=torch.uint8, device=bench.device)
        codes = torch._convert_weight_to_int4pack(raw, 8)
        scales = torch.ones(in_size // 128, out_size, 2, device=bench.device, dtype=torch.bfloat16)
        taken = bench.seconds(lambda: torch._weight_int4pack_mm(x, codes, 128, scales))
    except RuntimeError as error:
        bench.add(Row(name, None, "x", note=str(error).splitlines()[0][:80]))
    else:
        bench.add(Row(name, taken / plain, "x"))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
