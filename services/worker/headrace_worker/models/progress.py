"""How far a model's arrival has come, for whoever shows it."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with a phase ("download" or "load") and the share of its bytes that is done, 0 to 1, never falling."""


def silent(phase: str, share: float) -> None:
    """For callers who do not look."""
