"""Admission on what is used now, as engines have it that promise nothing: an output is expected to take no room.

Production does not do this; it exists to be compared with. Recompute preemption is the statistical class's own.
"""

from headrace_worker.scheduling.lengths import LengthDistribution, Moments

_NOTHING = Moments(0.0, 0.0)


class NoForesight(LengthDistribution):
    """Whatever was seen, nothing more is expected."""

    def remaining(self, num_done: int, limit: int) -> Moments:
        return _NOTHING
