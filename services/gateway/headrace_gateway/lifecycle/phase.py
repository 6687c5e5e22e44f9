"""Where a response stands; see `response` for the ways between."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """A response only moves down this list, except from QUEUED or STREAMING back to ROUTING for its next attempt."""

    NEW = 0
    ADMITTING = 1
    ROUTING = 2
    QUEUED = 3
    STREAMING = 4
    CLOSING = 5
    ENDED = 6
