"""Whatever clients call themselves and their models, the page that Prometheus reads does not grow."""

import secrets
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from headrace.v1 import inference_pb2, policy_pb2, snapshot_pb2
from headrace_gateway.arrival import Arrival
from headrace_gateway.catalog import Catalog
from headrace_gateway.front import Front
from headrace_gateway.prepare import Preparer
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError
from tests.meters import Moved


class Policy:
    """Knows half of the callers; refuses the rest as the real one does."""

    async def authenticate(self, credential: str, model: str = "") -> policy_pb2.Identity:
        if credential.startswith("hr_bad"):
            raise HeadraceError("unauthenticated", "no such key")
        return policy_pb2.Identity(tenant="t")


def num_series() -> int:
    return sum(len(family.samples) for family in telemetry.REGISTRY.collect())


async def test_ten_thousand_made_up_names_make_no_more_than_ten_series(tmp_path: Any) -> None:
    catalog = Catalog(grpc.aio.insecure_channel("127.0.0.1:1"), tmp_path)
    catalog.apply(snapshot_pb2.GatewaySection(models=[snapshot_pb2.ModelEntry(name="m", aliases=["alias"])]))
    services = cast(Any, SimpleNamespace(policy=Policy()))
    front = Front(services, catalog, Preparer(catalog, 10**6), 60.0)
    unknown, rejected = (Moved("responses_total", model=name, outcome="rejected") for name in ("unknown", "m"))
    before = num_series()
    for number in range(10_000):
        key = f"hr_bad{secrets.token_hex(8)}" if number % 2 else secrets.token_hex(8)
        request = inference_pb2.GenerateRequest(model=f"made-up-{secrets.token_hex(8)}", text="hi")
        with pytest.raises(HeadraceError):
            await front.open(request, key, None, Arrival.now({}))
    assert num_series() - before <= 10
    assert (unknown(), rejected()) == (10_000, 0)
    with pytest.raises(HeadraceError, match="no replica of m has registered"):
        await front.open(inference_pb2.GenerateRequest(model="alias", text="hi"), "k", None, Arrival.now({}))
    assert rejected() == 1
