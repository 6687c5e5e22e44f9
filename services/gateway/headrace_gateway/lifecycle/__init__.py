"""The life of a response as a pure state machine: events in, outputs out, the clock an argument.

`Response` is the machine; `events` is what it hears and `outputs` what it asks its shell to do. Standard library only.
"""

from .response import Response
from .terms import Terms

__all__ = ["Response", "Terms"]
