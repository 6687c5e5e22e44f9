"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values, and none on the output projection.

The bias comes with the configuration (`ModelConfig.qkv_bias`), so that only the name differs.
"""

from headrace_worker.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """See the module."""
