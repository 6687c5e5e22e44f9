"""The bounds of a response: prompt, output limit and choices against the model's limits (decision 4). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_kit.errors import HeadraceError

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens. `max_context` is prompt and output together; `default_output` caps an absent limit."""

    max_context: int
    default_output: int

    def within(self, max_sequence_tokens: int | None) -> Limits:
        """Also within what the model's pools allow for a sequence (None: nothing further)."""
        if max_sequence_tokens is None or max_sequence_tokens >= self.max_context:
            return self
        return Limits(max_sequence_tokens, self.default_output)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a response declares before it costs anything."""

    num_prompt_tokens: int
    max_output_tokens: int
    num_choices: int


def declare(
    num_prompt: int, max_output: int | None, num_choices: int | None, limits: Limits, field: str = "max_output_tokens"
) -> Bounds:
    """Bounds of a request; raises HeadraceError. `max_output` None means what is left, capped by the default.

    `field` names the output limit as the client's protocol does.
    """
    n = 1 if num_choices is None else num_choices
    if not 1 <= n <= MAX_CHOICES:
        raise HeadraceError("invalid_argument", f"n must be 1 to {MAX_CHOICES}, is {n}", field="n")
    if max_output is not None and max_output < 1:
        raise HeadraceError("invalid_argument", f"{field} must be at least 1, is {max_output}", field=field)
    if num_prompt < 1:
        raise HeadraceError("invalid_argument", "the prompt has no tokens", field="prompt")
    num_left = limits.max_context - num_prompt
    if num_left < 1:
        message = f"the prompt has {num_prompt} tokens and the model takes {limits.max_context}, output included"
        raise HeadraceError("context_length_exceeded", message, field="prompt")
    if max_output is None:
        return Bounds(num_prompt, min(num_left, limits.default_output), n)
    if max_output > num_left:
        message = (
            f"the prompt has {num_prompt} tokens and {field} is {max_output}; the model takes {limits.max_context} "
            f"in all, which leaves {num_left}"
        )
        raise HeadraceError("context_length_exceeded", message, field=field)
    return Bounds(num_prompt, max_output, n)
