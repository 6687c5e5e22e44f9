"""The shape of a decoder-only model, as `config.json` or GGUF metadata declare it. Pure data; no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeScaling:
    """The `llama3` stretch of rotary frequencies (Llama 3.1 model card, section "RoPE scaling")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


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
    rope_scaling: RopeScaling | None = None
    sliding_windows: tuple[int | None, ...] = ()
    """One entry per layer (None = full attention); empty = full attention everywhere."""
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, "query heads must be a multiple of key/value heads"
        assert len(self.sliding_windows) in (0, self.num_layers), "one window entry per layer"

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in tokens, None for full attention."""
        return self.sliding_windows[layer] if self.sliding_windows else None
