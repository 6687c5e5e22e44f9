"""Paged attention: decodes against the bandwidth of copying, prompts against the rate of products."""

import torch

from benchmarks.gpu.bench import Bench, Row
from headrace_worker.attention.triton_paged import num_multiprocessors
from headrace_worker.kernels.paged_decode import PagedKv, paged_decode, paged_decode_twin, plan_splits
from headrace_worker.kernels.paged_prefill import QueryTiles, paged_prefill, paged_prefill_twin

PAGE = 16


def _paged(bench: Bench, sequences: int, length: int, kind: torch.dtype) -> tuple[PagedKv, torch.Tensor]:
    """Pages in random order."""
    kv_heads, width = (2, 16) if bench.smoke else (8, 128)
    num_pages = -(-length // PAGE)
    sizes = (sequences * num_pages + 1, PAGE, kv_heads, width)
    k, v = (torch.randn(sizes, device=bench.device, dtype=bench.dtype).to(kind) for _ in range(2))
    order = torch.randperm(sequences * num_pages, device=bench.device).to(torch.int32) + 1
    return PagedKv(k, v), order.view(sequences, num_pages)


def _decode(bench: Bench, sequences: int, length: int, kind: torch.dtype) -> None:
    kv, table = _paged(bench, sequences, length, kind)
    heads, width = 4 * kv.k_PBKD.shape[2], kv.k_PBKD.shape[3]
    q = torch.randn(sequences, heads, width, device=bench.device, dtype=bench.dtype)
    lens = torch.full((sequences,), length, dtype=torch.int32, device=bench.device)
    plan = plan_splits(sequences, kv.k_PBKD.shape[2], length, num_multiprocessors(bench.device))
    name = f"decode of {sequences} at {length}, {kind}"
    got = paged_decode(q, kv, table, lens, width**-0.5, plan)
    wanted = paged_decode_twin(q[:1].double(), kv, table[:1], lens[:1], width**-0.5)
    error = float((got[:1].double() - wanted).abs().max() / wanted.abs().max())
    bench.add(Row(f"{name}: error", error, "of the largest", 0.03, at_most=True))
    taken = bench.seconds(lambda: paged_decode(q, kv, table, lens, width**-0.5, plan))
    read = kv.k_PBKD.nbytes + kv.v_PBKD.nbytes
    target = 0.85 if read >= 10**9 else None
    bench.share(f"{name}: bandwidth", read / taken / 1e9, "copy", target, f"{read / 1e9:.2f} GB a layer")


def _prefill(bench: Bench, length: int) -> None:
    kv, table = _paged(bench, 1, length, bench.dtype)
    heads, width = 4 * kv.k_PBKD.shape[2], kv.k_PBKD.shape[3]
    q = torch.randn(length, heads, width, device=bench.device, dtype=bench.dtype)
    tiles = QueryTiles.plan([length], [length], [0], bench.device)
    got = paged_prefill(q, kv, table, tiles, width**-0.5)
    if length <= 2048:
        wanted = paged_prefill_twin(q.double(), kv, table, tiles, width**-0.5)
        error = float((got.double() - wanted).abs().max() / wanted.abs().max())
        bench.add(Row(f"prefill of {length}: error", error, "of the largest", 0.03, at_most=True))
    taken = bench.seconds(lambda: paged_prefill(q, kv, table, tiles, width**-0.5))
    bench.share(f"prefill of {length}: rate", 2 * length**2 * heads * width / taken / 1e12, "matmul bf16", None)


def main() -> None:
    bench = Bench("attention")
    cells = [(2, 40)] if bench.smoke else [(32, 8192), (64, 8192), (64, 1024), (1, 8192), (1, 1024), (8, 8192)]
    for sequences, length in cells:
        with bench.part(f"decode of {sequences} at {length}"):
            _decode(bench, sequences, length, bench.dtype)
    for length in (40,) if bench.smoke else (2048, 8192):
        with bench.part(f"prefill of {length}"):
            _prefill(bench, length)
    if not bench.smoke and torch.cuda.get_device_capability() >= (8, 9):
        with bench.part("decode of 64 at 8192, fp8"):
            _decode(bench, 64, 8192, torch.float8_e4m3fn)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
