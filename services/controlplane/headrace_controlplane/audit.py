"""Whether the fleet's books balance: each process's own equations, and those between processes. Pure.

Between processes a count moves while it is read. Counts that only grow are bracketed: what the journal has lies between
what workers had handed over before it was read and what they have generated after. Counts that go up and down are read
several times: a leak shows in every reading, on the same side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Process = tuple[str, str]
"""Replica id and epoch."""
_TELLS = "tells its books"


@dataclass(frozen=True, slots=True)
class Equation:
    """One line of the audit."""

    component: str
    equation: str
    left: float
    right: float
    balanced: bool

    @property
    def is_missing(self) -> bool:
        """Whether it stands for books that nobody told."""
        return self.equation == _TELLS


@dataclass(frozen=True)
class Reading:
    """The fleet at one moment, as far as it goes up and down."""

    held_by_gateways: int = 0
    given_by_policy: int = 0
    attempts_of_gateways: int = 0
    attempts_of_routers: int = 0


@dataclass(frozen=True)
class Tokens:
    """Generated tokens of one process: handed over before and after the journal was read, and in the journal."""

    before: int
    journal: int
    after: int


@dataclass(frozen=True)
class Fleet:
    """Everything that was read."""

    own: Sequence[Equation] = ()
    readings: Sequence[Reading] = ()
    tokens: Mapping[Process, Tokens] = field(default_factory=dict)


def missing(component: str) -> Equation:
    """Of a service that should have told its books and did not: an audit without them does not balance."""
    return Equation(component, _TELLS, 0, 1, False)


def audit(fleet: Fleet) -> list[Equation]:
    """Every equation; the fleet balances if all do."""
    found = [*fleet.own]
    for (replica_id, epoch), one in sorted(fleet.tokens.items()):
        within = one.before <= one.journal <= one.after
        nearest = one.journal if within else one.before if one.journal < one.before else one.after
        found.append(
            Equation(
                f"worker {replica_id}@{epoch}",
                "generated and handed over = billed + refunded + discarded in the journal",
                nearest,
                one.journal,
                within,
            )
        )
    readings = fleet.readings
    if readings:
        held = [(one.held_by_gateways, one.given_by_policy) for one in readings]
        attempts = [(one.attempts_of_gateways, one.attempts_of_routers) for one in readings]
        found.append(_moving("reservations that gateways hold = reservations that policy gave", held))
        found.append(_moving("attempts of gateways = decisions in flight of routers", attempts))
    return found


def _moving(equation: str, pairs: Sequence[tuple[int, int]]) -> Equation:
    """Shows the reading with the least difference."""
    left, right = min(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    below = any(one < other for one, other in pairs)
    above = any(one > other for one, other in pairs)
    return Equation("fleet", equation, left, right, left == right or (below and above))
