"""What the fleet looked like second by second. Plain columns, for the report's plots."""

from dataclasses import dataclass, field


@dataclass
class Timeline:
    """One list per quantity, all of the same length; `at_s` is the time of each sample."""

    at_s: list[float] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    held_share: list[float] = field(default_factory=list)
    promised_share: list[float] = field(default_factory=list)
    queue_age_s: list[float] = field(default_factory=list)

    def add(self, at_s: float, **values: float) -> None:
        self.at_s.append(at_s)
        for name, value in values.items():
            getattr(self, name).append(value)
