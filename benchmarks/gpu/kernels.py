"""Kernels against float64 twins, then as a share of what the card copies; products beside bfloat16 ones."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.gpu.bench import Bench, Row
from benchmarks.gpu.products import measure_products
from headrace_worker.kernels.draw import DrawParams, draw
from headrace_worker.kernels.logprobs import gather_logprobs, gather_logprobs_twin
from headrace_worker.kernels.quantize_rows import quantize_rows, quantize_rows_twin
from headrace_worker.kernels.rms_norm import rms_norm, rms_norm_twin
from headrace_worker.kernels.rope_kv import rope_kv, rope_kv_twin
from headrace_worker.kernels.silu_mul import silu_mul, silu_mul_twin


class _Rows:
    """Row-wise kernels at the sizes of the 8B shape."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        smoke = bench.smoke
        self.num, self.hidden, self.inner, self.vocabulary = (4, 64, 96, 200) if smoke else (4096, 4096, 14336, 128_256)

    def noise(self, *sizes: int) -> Tensor:
        return torch.randn(sizes, device=self.bench.device, dtype=self.bench.dtype)

    def check(self, name: str, got: Tensor, exact: Tensor, limit: float = 0.02) -> None:
        error = float((got.double() - exact.double()).abs().max() / exact.double().abs().max())
        row = Row(f"{name}: largest error against float64", error, "of the largest value", limit, at_most=True)
        self.bench.add(row)

    def rate(self, name: str, run: Callable[[], object], num_bytes: int) -> None:
        self.bench.share(f"{name}: bandwidth", num_bytes / self.bench.seconds(run) / 1e9, "copy", None)

    def rms_norm(self) -> None:
        x, residual, weight = (
            self.noise(self.num, self.hidden),
            self.noise(self.num, self.hidden),
            self.noise(self.hidden),
        )
        exact = rms_norm_twin(x.double(), residual.double(), weight, 1e-5)[0]
        self.check("rms_norm", rms_norm(x, residual, weight, 1e-5)[0], exact)
        self.rate("rms_norm", lambda: rms_norm(x, residual, weight, 1e-5), 4 * x.nbytes)

    def silu_mul(self) -> None:
        both = self.noise(self.num, 2 * self.inner)
        self.check("silu_mul", silu_mul(both), silu_mul_twin(both.double()))
        self.rate("silu_mul", lambda: silu_mul(both), both.nbytes * 3 // 2)

    def rope_kv(self, kind: torch.dtype) -> None:
        heads, kv_heads, width = (4, 2, 16) if self.bench.smoke else (32, 8, 128)
        device, num = self.bench.device, self.num
        q, k, v = self.noise(num, heads, width), self.noise(num, kv_heads, width), self.noise(num, kv_heads, width)
        turn = torch.randn(num, width, device=device)
        slots = torch.arange(16, 16 + num, device=device)
        pages = [torch.zeros(num // 16 + 2, 16, kv_heads, width, device=device).to(kind) for _ in range(4)]
        got = rope_kv(q, k, v, turn, slots, (pages[0], pages[1]))
        wanted = rope_kv_twin(q.double(), k.double(), v.double(), turn, slots, (pages[2], pages[3]))
        self.check(f"rope_kv to {kind}", got, wanted)
        self.check(f"rope_kv to {kind}: keys", pages[0].float(), pages[2].float(), 0.08)
        moved = 2 * q.nbytes + k.nbytes + v.nbytes + 2 * k.numel() * kind.itemsize
        self.rate(f"rope_kv to {kind}", lambda: rope_kv(q, k, v, turn, slots, (pages[0], pages[1])), moved)

    def quantize_rows(self) -> None:
        x = self.noise(self.num, self.hidden)
        (codes, scales), (exact, exact_scales) = quantize_rows(x), quantize_rows_twin(x)
        self.check("quantize_rows", codes.float() * scales, exact.float() * exact_scales, 0.08)
        self.rate("quantize_rows", lambda: quantize_rows(x), x.nbytes + codes.nbytes)

    def gather_logprobs(self) -> None:
        logits = torch.randn(min(self.num, 64), self.vocabulary, device=self.bench.device)
        ids = torch.randint(0, self.vocabulary, (len(logits), 21), device=self.bench.device)
        self.check("gather_logprobs", gather_logprobs(logits, ids), gather_logprobs_twin(logits.double(), ids), 1e-5)
        self.rate("gather_logprobs", lambda: gather_logprobs(logits, ids), logits.nbytes)

    def draw(self, name: str, top_k: int, top_p: float) -> None:
        bench, device = self.bench, self.bench.device
        logits = torch.randn(min(self.num, 64), self.vocabulary, device=device)
        count = len(logits)
        whole, one = torch.arange(count, device=device), torch.ones(count, device=device)
        top_ks = torch.full((count,), top_k, dtype=torch.int32, device=device)
        params = DrawParams(whole, whole * 7919 + 1, top_ks, one, one * top_p, one * 0)
        bench.add(Row(f"draw of {count} rows, {name}", bench.seconds(lambda: draw(logits, params)) * 1e6, "us"))
        alone = DrawParams(whole[3:4], (whole * 7919 + 1)[3:4], top_ks[:1], one[:1], one[:1] * top_p, one[:1] * 0)
        same = int(draw(logits, params)[3]) == int(draw(logits, alone)[0])
        bench.add(Row(f"draw, {name}: a row draws the same alone", float(same), "", 1.0))


def main() -> None:
    bench = Bench("kernels")
    rows = _Rows(bench)
    can_fp8 = not bench.smoke and torch.cuda.get_device_capability() >= (8, 9)
    parts: dict[str, Callable[[], None]] = {
        "rms_norm": rows.rms_norm,
        "silu_mul": rows.silu_mul,
        "rope_kv": lambda: rows.rope_kv(bench.dtype),
        "gather_logprobs": rows.gather_logprobs,
        "draw, temperature": lambda: rows.draw("temperature", 0, 1.0),
        "draw, top-k 50 and top-p 0.9": lambda: rows.draw("top-k 50 and top-p 0.9", 50, 0.9),
    }
    if can_fp8:
        parts["rope_kv to fp8"] = lambda: rows.rope_kv(torch.float8_e4m3fn)
        parts["quantize_rows"] = rows.quantize_rows
    for name, run in parts.items():
        with bench.part(name):
            run()
    measure_products(bench, can_fp8)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
