"""Which ordinary traces are kept beside those of errors and broken budgets: a share of them, and not too many a second.

Pure: the clock is an argument.
"""


class TraceDraw:
    """`share` from 0 to 1 of all responses; of those at most `per_s` a second, one second's worth at once.

    A burst is what a trace's cost is felt in, so little of it is drawn.
    """

    def __init__(self, share: float, per_s: float) -> None:
        self._share, self._per_s = share, per_s
        self._room = max(1.0, per_s) if per_s > 0 else 0.0
        self._level, self._last = 0.0, float("-inf")

    def draw(self, trace_id: str, wished: bool, now: float) -> bool:
        """The share is decided by the trace id, so that all gateways agree; a client's own wish counts as drawn."""
        if not wished and int(trace_id[-8:], 16) >= self._share * 2**32:
            return False
        self._level = max(0.0, self._level - (now - self._last) * self._per_s)
        self._last = now
        if self._level + 1 > self._room:
            return False
        self._level += 1
        return True
