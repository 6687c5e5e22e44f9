"""4-bit codes as AWQ and GPTQ checkpoints pack them into 32-bit words. Knows no file and no layer.

GPTQ (Frantar et al. 2023, AutoGPTQ's layout) packs along the input, first code lowest; its zeros along the output, less
one in files of its first version. AWQ (Lin et al. 2023, the GEMM layout) packs both along the output, interleaved.
"""

import torch
from torch import Tensor

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where output 0, 1, ... of eight lies in its word."""


def _unpack(words: Tensor, places: tuple[int, ...]) -> Tensor:
    """int32 [..., N] -> codes [..., 8 N]."""
    shifts = 4 * torch.tensor(places, dtype=torch.int32)
    return ((words[..., None] >> shifts) & 15).flatten(-2).to(torch.uint8)


def awq_codes(words: Tensor) -> Tensor:
    """qweight [I, O / 8] -> [O, I]; qzeros [G, O / 8] -> [O, G]."""
    return _unpack(words, _AWQ_PLACES).t()


def gptq_codes(words_WO: Tensor) -> Tensor:
    """qweight [I / 8, O] -> [O, I]."""
    return _unpack(words_WO.t(), tuple(range(8)))


def gptq_zeros(words: Tensor, offset: int) -> Tensor:
    """qzeros [G, O / 8] -> [O, G]; `offset` is 1 in files of version 1."""
    return _unpack(words, tuple(range(8))).t() + offset
