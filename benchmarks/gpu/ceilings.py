"""What this card can do at most, measured here: bytes per second and products per second."""

import torch

from benchmarks.gpu.bench import Bench, Row


def _bytes(bench: Bench) -> None:
    size = 2**20 if bench.smoke else 2**30
    source = torch.ones(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    taken = bench.seconds(lambda: target.copy_(source))
    bench.add(Row("copy", 2 * size / taken / 1e9, "GB/s"))
    wide = source.view(torch.float32)
    taken = bench.seconds(lambda: torch.sum(wide))
    bench.add(Row("read", size / taken / 1e9, "GB/s", note="the sum of 1 GiB"))


def _products(bench: Bench) -> None:
    side = 128 if bench.smoke else 8192
    a, b = (torch.randn(side, side, device=bench.device, dtype=bench.dtype) for _ in range(2))
    taken = bench.seconds(lambda: a @ b)
    bench.add(Row("matmul bf16", 2 * side**3 / taken / 1e12, "TFLOP/s"))
    if bench.smoke or torch.cuda.get_device_capability() < (8, 9):
        return
    codes = (a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t())
    rows, columns = torch.ones(side, 1, device=bench.device), torch.ones(1, side, device=bench.device)
    taken = bench.seconds(lambda: torch._scaled_mm(*codes, scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16))
    bench.add(Row("matmul fp8", 2 * side**3 / taken / 1e12, "TFLOP/s"))


def main() -> None:
    bench = Bench("ceilings")
    with bench.part("bytes"):
        _bytes(bench)
    with bench.part("products"):
        _products(bench)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
