"""Makes the golden files from Hugging Face transformers, our independent reference. Run as a module:

    python -m tests.unit.worker.models.make_goldens

Needs the dependency group `slow`. What it writes is committed; a slow test makes it again and compares.
"""

import base64
import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.unit.worker.models.prompts import PROMPTS
from tests.unit.worker.models.smollm2 import fetch_smollm2
from tests.unit.worker.models.tiny import TINY, VOCAB_SIZE, write_tiny

# Not installed for the fast suite, and only partly typed: `Any` reads the same with and without it.
transformers: Any = importlib.import_module("transformers")
GOLDENS = Path(__file__).parent / "goldens"
NUM_ROWS = 40
NUM_PROMPT = 12
NUM_TOKENS = 64


def family_golden(family: str) -> dict[str, Any]:
    """Logits of one fixed sequence, and the greedy continuation of its head."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny(Path(folder), family)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        )
        ids = [(number * number * 7 + 3) % VOCAB_SIZE for number in range(NUM_ROWS)]
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0]
        greedy = _greedy(model, ids[:NUM_PROMPT], 16)
    return {
        "ids": ids,
        "logits_float32_base64": base64.b64encode(logits.numpy().tobytes()).decode(),
        "greedy": greedy["output_ids"],
        "least_margin": greedy["least_margin"],
    }


def smollm2_golden() -> dict[str, Any]:
    """Greedy outputs of SmolLM2 from its GGUF, dequantized to float32 by transformers."""
    path = fetch_smollm2()
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        shape_only = transformers.AutoModelForCausalLM.from_config(config)
    gguf: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    tensors = gguf.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=shape_only)["tensors"]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    assert missing == ["lm_head.weight"], missing
    model.tie_weights()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    answers = []
    for prompt in PROMPTS:
        text = prompt.text if prompt.raw else _chat_text(tokenizer, prompt.text)
        ids = tokenizer.encode(text, add_special_tokens=False)
        answers.append({"text": text, "prompt_ids": ids, **_greedy(model, ids, NUM_TOKENS)})
    return {"transformers": transformers.__version__, "answers": answers}


def _chat_text(tokenizer: Any, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(rendered, str)
    return rendered


def _greedy(model: Any, prompt_ids: list[int], num_tokens: int) -> dict[str, Any]:
    """Ends at no end token. The least margin between first and second tells how safe a comparison of ids is."""
    cache = transformers.DynamicCache(config=model.config)
    rows = torch.tensor([prompt_ids])
    out: list[int] = []
    margins: list[float] = []
    with torch.inference_mode():
        while len(out) < num_tokens:
            best = model(rows, cache=cache, use_cache=True).logits[0, -1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            out.append(int(best.indices[0]))
            rows = torch.tensor([out[-1:]])
    return {"output_ids": out, "least_margin": round(min(margins), 5)}


def write(name: str, golden: dict[str, Any]) -> None:
    (GOLDENS / name).write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write("families.json", {family: family_golden(family) for family in TINY})
    write("smollm2.json", smollm2_golden())
