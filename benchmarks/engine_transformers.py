"""Hugging Face transformers as a program that answers measurements; runs in that peer's own environment, alone.

The protocol is that of `engine_own`.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ids = torch.tensor(asked["prompts"])
        started_s = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=asked["num_out"], do_sample=False
            )
        took_s = time.perf_counter() - started_s
        print(json.dumps({"s": took_s, "ids": out[:, ids.shape[1] :].tolist()}), flush=True)


if __name__ == "__main__":
    main()
