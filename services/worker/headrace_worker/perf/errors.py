"""The errors a caller of the roofline can cause. Knows neither gRPC nor exit codes; edges map them."""


class PerfError(ValueError):
    """A value that the caller gave cannot be used; `field` names it the way the caller spelt it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class UnknownNameError(PerfError):
    """A model, card or precision that is neither built in nor a readable file."""


class LayoutError(PerfError):
    """A tensor or pipeline degree that the model's dimensions do not allow."""
