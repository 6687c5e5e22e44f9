"""How long a prompt takes, from the coefficients that its replica publishes. Pure. Knows no card and no model.

Features are those of the worker's step model: step (1), tokens, attention_pairs, tokens_beyond_K; a name that is not
known here belongs to decoding or to a later release and adds nothing to a prefill.
"""

from collections.abc import Mapping

_BEYOND = "tokens_beyond_"
# Prompts are computed in chunks; this is the worker's own default.
CHUNK_TOKENS = 512


def prefill_s(
    coefficients: Mapping[str, float], num_tokens: int, num_cached: int = 0, chunk_tokens: int = CHUNK_TOKENS
) -> float:
    """Seconds to compute ``num_tokens`` of a prompt on top of ``num_cached``; 0 if nothing is known."""
    if num_tokens <= 0:
        return 0.0
    num_full, rest = divmod(num_tokens, chunk_tokens)
    num_steps = num_full + (rest > 0)
    # Chunks over keys so far, and each token over those of its own chunk: together every pair of the prompt.
    num_pairs = num_tokens * num_cached + num_tokens**2 / 2
    seconds = (
        num_steps * coefficients.get("step", 0.0)
        + num_tokens * coefficients.get("tokens", 0.0)
        + num_pairs * coefficients.get("attention_pairs", 0.0)
    )
    for name, coefficient in coefficients.items():
        knee = name.removeprefix(_BEYOND)
        if knee != name and knee.isdecimal():
            num_beyond = num_full * max(0, chunk_tokens - int(knee)) + max(0, rest - int(knee))
            seconds += num_beyond * coefficient
    return seconds
