"""Section ``rollout``: how a changed pool replaces its replicas. Starts and stops nothing itself."""

from dataclasses import dataclass

from headrace_controlplane.fleet.schema import setting


@dataclass(frozen=True)
class Rollout:
    """New replicas are started first, and old ones leave when enough of the new are ready.

    A revision on trial is halted, which takes its share of new requests away, when its share of failures, of late first
    texts or of slow responses is larger than that of the revision beside it. Only an apply lets it go on.
    """

    surge: int = setting(1, "replicas of a pool that may run beyond its target during a change", minimum=0, maximum=100)
    drain_s: float = setting(30.0, "time that running sequences get when a replica leaves", minimum=0, maximum=3600)
    min_samples: int = setting(20, "outcomes of a revision on trial before it is judged", minimum=5, maximum=1_000_000)
    significance: float = setting(
        0.01, "chance at most to halt one that is as good as the other", minimum=1e-9, maximum=0.2
    )
    margin: float = setting(0.01, "how much larger a share may be and not count as worse", minimum=0, maximum=1)
