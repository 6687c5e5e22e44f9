"""What rounding costs SmolLM2 on a public-domain text (Austen, "Pride and Prejudice", 1813), by the twins on CPU.

Its weights come from a 4-bit file already (Q4_1, groups of 32): the baseline is that file, dequantized to float32.
"""

import math

import pytest
import torch
from tokenizers import Tokenizer

from headrace_worker.attention.base import AttentionBatch, KvPages
from headrace_worker.attention.torch_paged import TorchPagedAttention
from headrace_worker.models.checkpoint import ModelFiles, open_files
from headrace_worker.models.loader import load_model
from headrace_worker.models.registry import BuildOptions
from tests.unit.worker.models.smollm2 import fetch_smollm2

TEXT = """It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in
want of a wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood,
this truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful
property of some one or other of their daughters. "My dear Mr. Bennet," said his lady to him one day, "have you
heard that Netherfield Park is let at last?" Mr. Bennet replied that he had not. "But it is," returned she; "for
Mrs. Long has just been here, and she told me all about it." Mr. Bennet made no answer. "Do not you want to know
who has taken it?" cried his wife impatiently. "You want to tell me, and I have no objection to hearing it."
This was invitation enough. "Why, my dear, you must know, Mrs. Long says that Netherfield is taken by a young
man of large fortune from the north of England; that he came down on Monday in a chaise and four to see the
place, and was so much delighted with it that he agreed with Mr. Morris immediately; that he is to take
possession before Michaelmas, and some of his servants are to be in the house by the end of next week." "What is
his name?" "Bingley." "Is he married or single?" "Oh! single, my dear, to be sure! A single man of large
fortune; four or five thousand a year. What a fine thing for our girls!" """


def perplexity(files: ModelFiles, ids: list[int], quantization: str | None, kv_dtype: torch.dtype) -> float:
    model = load_model(files, BuildOptions(quantization=quantization))
    config = model.config
    num_pages = -(-len(ids) // 16)
    shape = (num_pages + 1, 16, config.num_kv_heads, config.head_dim)
    kv = [KvPages(torch.zeros(shape).to(kv_dtype), torch.zeros(shape).to(kv_dtype)) for _ in range(config.num_layers)]
    batch = AttentionBatch.build([len(ids)], [len(ids)], [list(range(1, num_pages + 1))], 16)
    with torch.inference_mode():
        step = TorchPagedAttention().begin(batch, kv, config.attention_scale)
        logits = model.compute_logits(model(torch.tensor(ids), torch.arange(len(ids)), step))
        return math.exp(float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))))


@pytest.mark.slow
def test_rounding_costs_little() -> None:
    files = open_files(fetch_smollm2())
    ids = Tokenizer.from_str(files.text.tokenizer_json).encode(" ".join(TEXT.split())).ids
    plain = perplexity(files, ids, None, torch.float32)
    limits = {("fp8", torch.float32): 0.06, ("int4", torch.float32): 0.30, (None, torch.float8_e4m3fn): 0.03}
    for (quantization, kv_dtype), limit in limits.items():
        rounded = perplexity(files, ids, quantization, kv_dtype)
        name = f"weights {quantization}, KV {kv_dtype}"
        print(f"{name}: {rounded:.3f} beside {plain:.3f} ({rounded / plain - 1:+.2%}) over {len(ids)} tokens")
        assert abs(rounded / plain - 1) < limit, name
