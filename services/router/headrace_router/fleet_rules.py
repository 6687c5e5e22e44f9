"""Pools and classes as the snapshot has them. Knows no replica."""

from dataclasses import dataclass

from headrace.v1 import snapshot_pb2
from headrace_router.deadlines import Budget
from headrace_router.scoring import PATIENT
from headrace_router.trials import Canary, Revisions

_ANY = Revisions(frozenset())


@dataclass(frozen=True)
class Pool:
    """What a router needs to know of a pool."""

    name: str
    model: str
    hold_s: float
    max_held: int
    max_replicas: int
    classes: tuple[str, ...]
    max_sequence_tokens: int


class FleetRules:
    """The section in force; ``apply`` replaces all of it or raises ValueError."""

    def __init__(self) -> None:
        self.pools: dict[str, Pool] = {}
        self._by_model: dict[str, list[Pool]] = {}
        self._budgets: dict[str, Budget] = {}
        self._revisions: dict[str, Revisions] = {}
        self.known = False
        """Whether a section is in force; before that a model that is missing may exist."""

    def apply(self, section: snapshot_pb2.RouterSection) -> None:
        pools: dict[str, Pool] = {}
        for row in section.pools:
            if not row.name or not row.model or row.name in pools:
                raise ValueError(f'pool "{row.name}" has no name, no model, or is there twice')
            pools[row.name] = _pool(row)
        by_model: dict[str, list[Pool]] = {}
        for pool in pools.values():
            by_model.setdefault(pool.model, []).append(pool)
        budgets = {row.name: _budget(row) for row in section.classes}
        revisions = {row.model: _revisions(row) for row in section.models}
        self.pools, self._by_model, self._budgets, self.known = pools, by_model, budgets, True
        self._revisions = revisions

    @property
    def models(self) -> list[str]:
        return list(self._by_model)

    def pools_of(self, model: str) -> list[Pool]:
        return self._by_model.get(model, [])

    def revisions(self, model: str) -> Revisions:
        """Which revisions may serve for one another; where the section says nothing, none but the one asked for."""
        return self._revisions.get(model, _ANY)

    def budget(self, slo_class: str) -> Budget:
        """A class that this snapshot does not know yet, or no more, gets the most patient budget that it has."""
        known = self._budgets.get(slo_class)
        return known or max(self._budgets.values(), key=lambda budget: budget.ttft_s, default=PATIENT)


def _pool(row: snapshot_pb2.Pool) -> Pool:
    return Pool(
        name=row.name,
        model=row.model,
        hold_s=row.hold_ms / 1000,
        max_held=row.max_held,
        max_replicas=row.max_replicas,
        classes=tuple(row.classes),
        max_sequence_tokens=row.max_sequence_tokens,
    )


def _revisions(row: snapshot_pb2.RoutedModel) -> Revisions:
    canary = Canary(row.canary.revision, row.canary.share, row.canary.trial) if row.HasField("canary") else None
    return Revisions(frozenset(row.revisions), canary)


def _budget(row: snapshot_pb2.SloClass) -> Budget:
    if not row.name or not row.ttft_ms or not row.max_queue_ms:
        raise ValueError(f'class "{row.name}" needs a name, ttft_ms and max_queue_ms')
    return Budget(
        ttft_s=row.ttft_ms / 1000,
        max_queue_s=row.max_queue_ms / 1000,
        delivery_reserve_s=row.delivery_reserve_ms / 1000,
        inter_token_s=row.inter_token_ms / 1000,
        statistical=row.statistical,
    )
