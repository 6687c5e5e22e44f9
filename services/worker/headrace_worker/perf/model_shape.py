"""The dimensions of a decoder-only dense transformer, and the parameters they imply. Knows no card and no file.

Mixture-of-experts and latent-attention configs are refused: their bytes and FLOPs per token follow other formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace_worker.perf.errors import PerfError

# Two-matrix MLPs; every other family is read as gate, up and down (Llama and its descendants).
UNGATED_MODEL_TYPES = frozenset(
    {"opt", "bloom", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "falcon", "phi", "starcoder2", "nemotron"}
)
# One vocabulary matrix where the config does not say: its families' default.
TIED_MODEL_TYPES = UNGATED_MODEL_TYPES - {"nemotron"} | {
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "cohere",
    "cohere2",
}
# One KV head for all where the config does not say how many.
_MULTI_QUERY_MODEL_TYPES = frozenset({"falcon", "gpt_bigcode"})
UNSUPPORTED_KEYS = {
    "num_local_experts": "mixture-of-experts models are not modelled",
    "num_experts": "mixture-of-experts models are not modelled",
    "n_routed_experts": "mixture-of-experts models are not modelled",
    "kv_lora_rank": "latent attention is not modelled",
    "ssm_state_size": "state-space layers are not modelled",
}
# One layer in so many sees everything; older configs of these families do not list their layers.
WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}
_REQUIRED: Any = object()


@dataclass(frozen=True)
class ModelShape:
    """Dimensions as in config.json. `num_window_layers` layers see the last `sliding_window` tokens only.

    `nominal_params`, when set, is the advertised parameter count: memory scales to it, time does not.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_window_layers: int = 0
    nominal_params: int | None = None
    quantized: str = ""
    """How the checkpoint says that it stores weights; what is planned for is asked beside it."""

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size",
                      "vocab_size", "max_context"):  # fmt: skip
            if getattr(self, field) < 1:
                raise PerfError(field, f"must be at least 1, not {getattr(self, field)}")
        if self.num_heads % self.num_kv_heads:
            raise PerfError("num_kv_heads", f"{self.num_kv_heads} KV heads do not divide {self.num_heads} query heads")
        if not 0 <= self.num_window_layers <= self.num_layers:
            raise PerfError("num_window_layers", f"{self.num_window_layers} is not within 0..{self.num_layers} layers")

    @property
    def qkv_out(self) -> int:
        """Output width of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def attention_params(self) -> int:
        """Matrix parameters of one layer's attention: QKV and output projections."""
        return self.hidden_size * self.qkv_out + self.num_heads * self.head_dim * self.hidden_size

    @property
    def mlp_params(self) -> int:
        """Matrix parameters of one layer's MLP."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size

    @property
    def layer_vector_params(self) -> int:
        """Norm weights and biases of one layer; replicated or negligible under tensor parallelism."""
        biases = self.qkv_out if self.attention_bias else 0
        return 2 * self.hidden_size + biases + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def layer_params(self) -> int:
        """All parameters of one layer."""
        return self.attention_params + self.mlp_params + self.layer_vector_params

    @property
    def embedding_params(self) -> int:
        """Parameters of one vocabulary matrix (input or output)."""
        return self.vocab_size * self.hidden_size

    @property
    def num_params(self) -> int:
        """Parameters that the dimensions imply, embeddings included, a tied matrix once."""
        num_vocab_matrices = 1 if self.tied_embeddings else 2
        return self.num_layers * self.layer_params + num_vocab_matrices * self.embedding_params + self.hidden_size

    @property
    def advertised_params(self) -> int:
        """`nominal_params` where given, else what the dimensions imply."""
        return self.nominal_params or self.num_params

    def with_params(self, num_params: int) -> "ModelShape":
        """The same dimensions under another advertised parameter count."""
        if num_params < 1:
            raise PerfError("params", f"must be at least 1, not {num_params}")
        return replace(self, nominal_params=num_params)


def from_config(config: Mapping[str, Any], name: str = "config.json") -> ModelShape:
    """Read a parsed Hugging Face config.json. `PerfError` names the key that is missing, mistyped or not modelled."""
    if not isinstance(config, Mapping):
        raise PerfError("config", "is not a JSON object")
    whole, text = config, config.get("text_config")
    config = text if isinstance(text, Mapping) else config
    for key, reason in UNSUPPORTED_KEYS.items():
        if config.get(key):
            raise PerfError(key, reason)
    model_type = str(config.get("model_type", "llama"))
    hidden_size = _integer(config, "hidden_size", "n_embd", "word_embed_proj_dim")
    num_heads = _integer(config, "num_attention_heads", "n_head")
    num_layers = _integer(config, "num_hidden_layers", "n_layer")
    if not config.get("head_dim") and hidden_size % num_heads:
        raise PerfError("head_dim", f"is absent and {num_heads} heads do not divide hidden_size {hidden_size}")
    _check_layers(config)
    window, num_window_layers = _windows(config, num_layers)
    is_multi_query = config.get("multi_query", model_type in _MULTI_QUERY_MODEL_TYPES)
    return ModelShape(
        name=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_integer(
            config, "num_key_value_heads", "num_kv_heads", "n_head_kv", default=1 if is_multi_query else num_heads
        ),
        head_dim=_integer(config, "head_dim", default=hidden_size // num_heads),
        intermediate_size=_integer(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden_size),
        vocab_size=_integer(config, "vocab_size"),
        max_context=_integer(config, "max_position_embeddings", "n_positions", "seq_length", default=2048),
        tied_embeddings=bool(config.get("tie_word_embeddings", model_type in TIED_MODEL_TYPES)),
        gated_mlp=model_type not in UNGATED_MODEL_TYPES,
        attention_bias=bool(config.get("attention_bias", model_type in {"qwen2", "opt", "bloom", "gpt2"})),
        qk_norm=model_type == "qwen3",
        sliding_window=window,
        num_window_layers=num_window_layers,
        quantized=_quantized(whole),
    )


def _integer(config: Mapping[str, Any], *keys: str, default: Any = _REQUIRED) -> int:
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PerfError(key, f"must be a positive integer, not {value!r}")
        return value
    if default is _REQUIRED:
        raise PerfError(keys[0], "is missing from the config")
    return int(default)


def _check_layers(config: Mapping[str, Any]) -> None:
    """Layers without attention keep no KV: what they keep, and how long they take, is not modelled."""
    kinds = config.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else ():
        if kind not in ("full_attention", "sliding_attention"):
            raise PerfError("layer_types", f"layers of kind {kind!r} are not modelled")


def _quantized(config: Mapping[str, Any]) -> str:
    found = config.get("quantization_config")
    if not isinstance(found, Mapping):
        return ""
    bits = f", {found['bits']} bits" if isinstance(found.get("bits"), int) else ""
    return f"{found.get('quant_method', 'in some way')}{bits}"


def _windows(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, int]:
    """The sliding window and how many layers use it: as `layer_types` says, else by the family's rule, else all."""
    is_qwen = str(config.get("model_type", "")).startswith("qwen")
    if config.get("sliding_window") is None or not config.get("use_sliding_window", not is_qwen):
        return None, 0
    window = _integer(config, "sliding_window")
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list):
        return window, sum(kind == "sliding_attention" for kind in layer_types)
    if config.get("model_type") in WINDOW_PATTERNS:
        pattern = _integer(config, "sliding_window_pattern", default=WINDOW_PATTERNS[config["model_type"]])
        return window, num_layers - num_layers // pattern
    num_full = config.get("max_window_layers") if is_qwen else None
    return window, num_layers - min(num_layers, num_full or 0)


BUILT_IN_MODELS = {
    shape.name: shape
    for shape in (
        # The house's reference model: advertised as 70e9 parameters (the published dimensions imply 70.55e9).
        ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072, nominal_params=70_000_000_000),
        ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
        ModelShape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 40960, tied_embeddings=True, qk_norm=True),
        ModelShape("smollm2-135m-instruct", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied_embeddings=True),
    )
}
