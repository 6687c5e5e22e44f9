"""Breakers, warm capacity and held requests, as Prometheus reads them."""

import prometheus_client
import pytest

from headrace.v1 import worker_pb2
from headrace_router.breaker import NUM_FAULTS
from headrace_router.demand import Demand
from headrace_router.gauges import Gauges
from headrace_router.scoring import Ask
from tests.unit.router.fakes import Fleet


class Page:
    """A registry with the gauges of one fleet, on a virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet, self.demand = Fleet(lambda: self.now), Demand()
        self.registry = prometheus_client.CollectorRegistry()
        self.registry.register(Gauges(self.fleet.rules, self.fleet.table, self.demand, lambda: self.now))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def breakers(self) -> dict[str, float | None]:
        return {state: self.value("breakers", state=state) for state in ("closed", "open", "half_open")}


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_breaker_opens_half_opens_and_closes(page: Page) -> None:
    first, _ = page.fleet.ready("w-1", "w-2")
    assert page.breakers() == {"closed": 2, "open": 0, "half_open": 0}
    for _ in range(NUM_FAULTS):
        first.breaker.on_outcome("fault", page.now, 1.0)
    assert page.breakers() == {"closed": 1, "open": 1, "half_open": 0}
    page.now = 10.0
    assert page.breakers() == {"closed": 1, "open": 0, "half_open": 1}
    first.breaker.on_outcome("success", page.now, 1.0)
    assert page.breakers() == {"closed": 2, "open": 0, "half_open": 0}


def test_warm_capacity_is_what_ready_replicas_have_not_promised(page: Page) -> None:
    assert (page.value("warm_replicas", model="m"), page.value("warm_tokens", model="m")) == (0, 0)
    first, second = page.fleet.ready("w-1", "w-2")
    page.fleet.table.set_load(first, worker_pb2.Load(num_total_pages=100, num_promised_pages=40))
    page.fleet.table.set_load(second, worker_pb2.Load(num_total_pages=100, num_promised_pages=100))
    assert first.description is not None
    assert page.value("warm_tokens", model="m") == 60 * first.description.page_tokens
    assert page.value("warm_replicas", model="m") == 2
    page.fleet.table.set_state(second, "e1", worker_pb2.REPLICA_STATE_DEGRADED)
    assert page.value("warm_replicas", model="m") == 1


def test_held_requests_are_told_by_model(page: Page) -> None:
    ask, token = Ask(model="m"), object()
    page.demand.held(ask, token, page.now)
    assert page.value("route_held", model="m") == 1
    page.demand.let_go("m", token)
    assert page.value("route_held", model="m") == 0


def test_models_of_the_snapshot_are_the_only_labels(page: Page) -> None:
    page.fleet.ready("w-1")
    labels = {
        sample.labels["model"]
        for family in page.registry.collect()
        for sample in family.samples
        if "model" in sample.labels
    }
    assert labels == {"m"}
