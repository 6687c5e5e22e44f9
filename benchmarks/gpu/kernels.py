"""Row-wise kernels: against float64 twins, then as a share of what the card copies."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench, Row
from headrace_worker.kernels.draw import DrawParams, draw
from headrace_worker.kernels.logprobs import gather_logprobs, gather_logprobs_twin
from headrace_worker.kernels.rms_norm import rms_norm, rms_norm_twin
from headrace_worker.kernels.rope_kv import rope_kv, rope_kv_twin
from headrace_worker.kernels.silu_mul import silu_mul, silu_mul_twin


def main() -> None:
    bench = Bench("kernels")
    rows, hidden, inner, vocabulary = (4, 64, 96, 200) if bench.smoke else (4096, 4096, 14336, 128_256)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=bench.device, dtype=bench.dtype)

    def check(name: str, got: Tensor, exact: Tensor, limit: float = 0.02) -> None:
        error = float((got.double() - exact.double()).abs().max() / exact.double().abs().max())
        bench.add(Row(f"{name}: largest error against float64", error, "of the largest value", limit, at_most=True))

    def rate(name: str, run: Callable[[], object], num_bytes: int) -> None:
        bench.share(f"{name}: bandwidth", num_bytes / bench.seconds(run) / 1e9, "copy", None)

    x, residual, weight = noise(rows, hidden), noise(rows, hidden), noise(hidden)
    check(
        "rms_norm",
        rms_norm(x, residual, weight, 1e-5)[0],
        rms_norm_twin(x.double(), residual.double(), weight, 1e-5)[0],
    )
    rate("rms_norm", lambda: rms_norm(x, residual, weight, 1e-5), 4 * x.nbytes)
    both = noise(rows, 2 * inner)
    check("silu_mul", silu_mul(both), silu_mul_twin(both.double()))
    rate("silu_mul", lambda: silu_mul(both), both.nbytes * 3 // 2)
    heads, kv_heads, width = (4, 2, 16) if bench.smoke else (32, 8, 128)
    q, k, v = noise(rows, heads, width), noise(rows, kv_heads, width), noise(rows, kv_heads, width)
    turn = torch.randn(rows, width, device=bench.device)
    slots = torch.arange(16, 16 + rows, device=bench.device)
    kinds = [bench.dtype] if bench.smoke else [bench.dtype, torch.float8_e4m3fn]
    for kind in kinds:
        pages = [torch.zeros(rows // 16 + 2, 16, kv_heads, width, device=bench.device).to(kind) for _ in range(4)]
        got = rope_kv(q, k, v, turn, slots, (pages[0], pages[1]))
        wanted = rope_kv_twin(q.double(), k.double(), v.double(), turn, slots, (pages[2], pages[3]))
        check(f"rope_kv to {kind}", got, wanted)
        check(f"rope_kv to {kind}: keys", pages[0].float(), pages[2].float(), 0.08)
        moved = 2 * q.nbytes + k.nbytes + v.nbytes + 2 * k.numel() * kind.itemsize
        rate(f"rope_kv to {kind}", lambda p=pages: rope_kv(q, k, v, turn, slots, (p[0], p[1])), moved)  # type: ignore[misc]
    logits = torch.randn(min(rows, 64), vocabulary, device=bench.device)
    ids = torch.randint(0, vocabulary, (len(logits), 21), device=bench.device)
    check("gather_logprobs", gather_logprobs(logits, ids), gather_logprobs_twin(logits.double(), ids), 1e-5)
    rate("gather_logprobs", lambda: gather_logprobs(logits, ids), logits.nbytes)
    _draws(bench, logits)


def _draws(bench: Bench, logits: Tensor) -> None:
    count = len(logits)
    whole = torch.arange(count, device=bench.device)
    one = torch.ones(count, device=bench.device)
    for name, top_k, top_p in (("temperature", 0, 1.0), ("top-k 50 and top-p 0.9", 50, 0.9)):
        top_ks = torch.full((count,), top_k, dtype=torch.int32, device=bench.device)
        params = DrawParams(whole, whole * 7919 + 1, top_ks, one, one * top_p, one * 0)
        taken = bench.seconds(lambda params=params: draw(logits, params))  # type: ignore[misc]
        bench.add(Row(f"draw of {count} rows, {name}", taken * 1e6, "us"))
        alone = DrawParams(whole[3:4], (whole * 7919 + 1)[3:4], top_ks[:1], one[:1], one[:1] * top_p, one[:1] * 0)
        same = int(draw(logits, params)[3]) == int(draw(logits, alone)[0])
        bench.add(Row(f"draw, {name}: a row draws the same alone", float(same), "", 1.0))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
