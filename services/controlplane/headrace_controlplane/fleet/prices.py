"""Section ``prices``: what tokens cost, by model. Knows no tenant."""

from dataclasses import dataclass

from headrace_controlplane.fleet.schema import NAME, setting

EVERY_OTHER = "*"


@dataclass(frozen=True)
class Price:
    """Money per million tokens; ``*`` names every model without a price of its own."""

    NAMES = rf"\*|{NAME.pattern}"

    prompt_per_million: float = setting(0.0, "prompt tokens", minimum=0, maximum=1e9)
    cached_per_million: float = setting(0.0, "reused prompt tokens", minimum=0, maximum=1e9)
    output_per_million: float = setting(0.0, "output tokens", minimum=0, maximum=1e9)
