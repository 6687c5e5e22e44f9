"""Which gateway waits for which decision, and for how long each is known to be gone. Pure: the clock is an argument.

Whoever is gone reports no outcome. What it left behind is given up once ORPHAN_S are over, time enough for another
gateway to settle what had reached a worker. It is the control plane that says who is gone: not who is slow, stopped or
cut off for a while; and whoever is heard of again never was. Knows no replica.
"""

from collections.abc import Set

# With two looks (the watch's LOOK_S) it is over before the lease of the reservation is, which policy then settles.
ORPHAN_S = 15.0


class Gateways:
    """Open decisions by gateway process, and since when, in seconds, it has been called gone without a break."""

    def __init__(self) -> None:
        self._decisions: dict[str, set[str]] = {}
        self._gone_since: dict[str, float] = {}

    def add(self, gateway_id: str, decision_id: str) -> None:
        if gateway_id:
            self._decisions.setdefault(gateway_id, set()).add(decision_id)

    def discard(self, gateway_id: str, decision_id: str) -> None:
        decisions = self._decisions.get(gateway_id)
        if decisions is None:
            return
        decisions.discard(decision_id)
        if not decisions:
            del self._decisions[gateway_id]
            self._gone_since.pop(gateway_id, None)

    def waiting(self) -> list[str]:
        """Those that have an outcome to report."""
        return list(self._decisions)

    def decisions(self, gateway_id: str) -> list[str]:
        """What it has not reported."""
        return list(self._decisions.get(gateway_id, ()))

    def heard(self, gateway_id: str) -> None:
        """It called: it is not gone."""
        self._gone_since.pop(gateway_id, None)

    def told(self, asked: Set[str], gone: Set[str], now: float) -> list[str]:
        """Of those asked about these are gone; returns whose orphan time is over."""
        for gateway_id in asked - gone:
            self._gone_since.pop(gateway_id, None)
        for gateway_id in asked & gone & self._decisions.keys():
            self._gone_since.setdefault(gateway_id, now)
        return [one for one in asked & gone if now - self._gone_since.get(one, now) >= ORPHAN_S]
