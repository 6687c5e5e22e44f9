"""vLLM on CPU as a program that answers measurements; runs in that peer's own environment, alone.

The protocol is that of `engine_own`. vLLM writes to standard output as it likes, so the answers go to a copy of it.
"""

import json
import os
import sys
import time


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    model = LLM(
        model=sys.argv[1],
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=2048,
        enable_prefix_caching=False,
    )
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        sampling = SamplingParams(temperature=0.0, max_tokens=asked["num_out"], ignore_eos=True, detokenize=False)
        started_s = time.perf_counter()
        outputs = model.generate(prompts, sampling, use_tqdm=False)
        took_s = time.perf_counter() - started_s
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"s": took_s, "ids": ids}), file=answers, flush=True)


if __name__ == "__main__":
    main()
