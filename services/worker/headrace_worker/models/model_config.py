"""The shape of a decoder-only model, as `config.json` or GGUF metadata declare it. Pure data."""

from dataclasses import dataclass

from headrace_worker.layers.rotary import Llama3Stretch


@dataclass(frozen=True)
class ModelConfig:
    """Everything a model file needs to build its layers. Widths are in elements, `max_position` in tokens."""

    family: str
    """Key of `registry.FAMILIES`: llama, mistral, qwen2, qwen3."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    tie_embeddings: bool
    rope_stretch: Llama3Stretch | None = None
    rope_divisors: tuple[float, ...] = ()
    """What each rotary frequency is divided by, as GGUF stores a stretch; empty = as they are."""
    sliding_windows: tuple[int | None, ...] = ()
    """One entry per layer (None = full attention); empty = full attention everywhere."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias of the attention's output projection."""
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, "query heads must be a multiple of key/value heads"
        assert len(self.sliding_windows) in (0, self.num_layers), "one window entry per layer"

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None for full attention."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def attention_scale(self) -> float:
        """What scores are multiplied by before the softmax."""
        return float(self.head_dim**-0.5)
