"""Row-wise kernels against their torch twins, under the interpreter (float32 and float16: bfloat16 is compiled)."""

import pytest
import torch

from headrace_worker.kernels.logprobs import gather_logprobs, gather_logprobs_twin
from headrace_worker.kernels.rms_norm import rms_norm, rms_norm_twin
from headrace_worker.kernels.rope_kv import rope_kv, rope_kv_twin
from headrace_worker.kernels.silu_mul import silu_mul, silu_mul_twin

RTOL, ATOL = {torch.float32: 1e-5, torch.float16: 2e-3}, {torch.float32: 1e-6, torch.float16: 2e-3}


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "size"), [(0, 64), (1, 64), (3, 576), (5, 100)])
@pytest.mark.parametrize("has_residual", [True, False])
def test_rms_norm(dtype: torch.dtype, rows: int, size: int, has_residual: bool) -> None:
    x, weight = noise(rows, size, dtype=dtype), noise(size, dtype=dtype, seed=1)
    residual = noise(rows, size, dtype=dtype, seed=2) if has_residual else None
    for got, wanted in zip(rms_norm(x, residual, weight, 1e-5), rms_norm_twin(x, residual, weight, 1e-5), strict=True):
        torch.testing.assert_close(got, wanted, rtol=RTOL[dtype], atol=ATOL[dtype])


def test_rms_norm_of_rows_that_lie_apart() -> None:
    whole, weight = noise(4, 200), noise(64, seed=1)
    got, _ = rms_norm(whole[:, :64], None, weight, 1e-6)
    torch.testing.assert_close(got, rms_norm_twin(whole[:, :64], None, weight, 1e-6)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 8), (3, 1536), (2, 1025)])
def test_silu_mul(dtype: torch.dtype, rows: int, size: int) -> None:
    both = noise(rows, 2 * size, dtype=dtype)
    torch.testing.assert_close(silu_mul(both), silu_mul_twin(both), rtol=RTOL[dtype], atol=ATOL[dtype])


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(8, 4, 16), (9, 3, 64), (2, 2, 96)])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float8_e4m3fn])
def test_rope_and_the_write_of_pages(num_heads: int, num_kv_heads: int, head_dim: int, kv_dtype: torch.dtype) -> None:
    rows, page_size, num_pages = 5, 16, 4
    both = noise(rows, (num_heads + 2 * num_kv_heads) * head_dim)
    q, k, v = torch.tensor_split(both, [num_heads * head_dim, (num_heads + num_kv_heads) * head_dim], dim=1)
    angles = noise(rows, head_dim // 2, seed=3)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    slots = torch.tensor([0, 17, 31, 32, 63])  # one row of padding, ends of pages
    heads = (
        q.view(rows, num_heads, head_dim),
        k.view(rows, num_kv_heads, head_dim),
        v.view(rows, num_kv_heads, head_dim),
    )
    scales = (0.5, 0.25) if kv_dtype is torch.float8_e4m3fn else (1.0, 1.0)
    pages = [torch.zeros(num_pages, page_size, num_kv_heads, head_dim).to(kv_dtype) for _ in range(4)]
    got = rope_kv(*heads, cos_sin, slots, (pages[0], pages[1]), scales)
    wanted = rope_kv_twin(*heads, cos_sin, slots, (pages[2], pages[3]), scales)
    torch.testing.assert_close(got, wanted)
    for written, expected in ((pages[0], pages[2]), (pages[1], pages[3])):
        assert not written[0].float().any(), "padding wrote to the null page"
        if kv_dtype is torch.float32:
            torch.testing.assert_close(written, expected)
            continue
        # The interpreter truncates where cards round to even, and loses the carry of a mantissa that rounds up to the
        # next power of two: all but a few codes are within one of the twin's.
        steps = written.view(torch.uint8).to(torch.int16) - expected.view(torch.uint8).to(torch.int16)
        assert (steps.abs() > 1).float().mean() < 0.01


@pytest.mark.parametrize("vocabulary", [7, 4096, 5001])
def test_logprobs_of_chosen_tokens(vocabulary: int) -> None:
    logits = noise(3, vocabulary) * 20
    logits[1, :3] = -torch.inf
    ids = torch.tensor([[0, vocabulary - 1, -1], [5, 1, 6], [2, 2, 3]])
    torch.testing.assert_close(gather_logprobs(logits, ids), gather_logprobs_twin(logits, ids))
