"""The models that may be named: what is not known yet is not the same as what does not exist."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from headrace.v1 import fleet_pb2, inference_pb2, policy_pb2, response_pb2, routing_pb2, snapshot_pb2
from headrace_gateway import messages
from headrace_gateway.catalog import Catalog
from headrace_kit.errors import HeadraceError
from headrace_kit.lifecycle import cancel_and_wait
from tests.unit.gateway.text.toy_models import make_card


@pytest.fixture
async def catalog(tmp_path: Path) -> Catalog:
    return Catalog(grpc.aio.insecure_channel("127.0.0.1:1"), tmp_path)


def reason(catalog: Catalog, name: str) -> str:
    with pytest.raises(HeadraceError) as refused:
        catalog.find(name)
    return refused.value.reason


async def test_before_the_first_snapshot_a_model_may_exist(catalog: Catalog) -> None:
    assert reason(catalog, "m") == "no_replica"
    catalog.apply(snapshot_pb2.GatewaySection())
    assert reason(catalog, "m") == "model_not_found"


async def test_a_model_without_its_card_has_no_replica_yet(catalog: Catalog) -> None:
    catalog.apply(snapshot_pb2.GatewaySection(models=[snapshot_pb2.ModelEntry(name="m", aliases=["a"])]))
    assert reason(catalog, "m") == reason(catalog, "a") == "no_replica"
    assert reason(catalog, "other") == "model_not_found"


async def test_a_name_stands_for_one_model(catalog: Catalog) -> None:
    both = [snapshot_pb2.ModelEntry(name="m"), snapshot_pb2.ModelEntry(name="n", aliases=["m"])]
    with pytest.raises(ValueError, match="m stands for two models"):
        catalog.apply(snapshot_pb2.GatewaySection(models=both))


async def test_only_a_class_that_says_so_gives_way(catalog: Catalog) -> None:
    classes = [snapshot_pb2.SloClass(name="batch", statistical=True), snapshot_pb2.SloClass(name="chat")]
    catalog.apply(snapshot_pb2.GatewaySection(classes=classes))
    assert [catalog.is_statistical(name) for name in ("batch", "chat", "", "other")] == [True, False, False, False]


def test_a_worker_hears_that_a_request_gives_way() -> None:
    for gives_way in (True, False):
        prepared: Any = SimpleNamespace(
            prompt_ids=b"",
            bounds=response_pb2.Bounds(n=1),
            sampling=response_pb2.Sampling(),
            slo_class="batch",
            statistical=gives_way,
            identity=policy_pb2.Identity(),
            chain_root=b"",
            request=inference_pb2.GenerateRequest(),
        )
        output: Any = SimpleNamespace(attempt=1, queue_s=1.0, total_s=1.0)
        made = messages.submit("r", prepared, output, routing_pb2.RouteResponse())
        assert made.statistical is gives_way


def test_tenants_share_a_chain_only_in_a_group() -> None:
    """The salt is the gateway's: no client chooses it, and a group's name is not a tenant's (B97)."""
    catalog: Any = Catalog.__new__(Catalog)
    catalog._section = snapshot_pb2.GatewaySection(salt_secret=b"secret")
    model: Any = SimpleNamespace(card=SimpleNamespace(tokenizer_digest=b"t"))
    one, two, grouped = (
        policy_pb2.Identity(tenant="acme"),
        policy_pb2.Identity(tenant="other"),
        policy_pb2.Identity(tenant="other", sharing_group="acme"),
    )
    also = policy_pb2.Identity(tenant="third", sharing_group="acme")
    roots = [catalog.chain_root(model, identity) for identity in (one, two, grouped)]
    assert len(set(roots)) == 3
    assert catalog.chain_root(model, also) == roots[2]


class Cards:
    """A control plane that has one card."""

    def __init__(self, card: bytes) -> None:
        self._card = card

    async def GetArtifact(self, request: Any, timeout: float) -> AsyncIterator[fleet_pb2.ArtifactChunk]:
        yield fleet_pb2.ArtifactChunk(data=self._card)


def wants(catalog: Any, card: bytes) -> None:
    catalog._stub = Cards(card)
    entry = snapshot_pb2.ModelEntry(name="m", card_digest=hashlib.sha256(card).digest())
    catalog.apply(snapshot_pb2.GatewaySection(models=[entry]))


async def test_a_card_that_the_disk_does_not_take_is_served_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cards").write_text("no directory")
    catalog = Catalog(grpc.aio.insecure_channel("127.0.0.1:1"), tmp_path / "cards")
    wants(catalog, make_card())
    assert await catalog._load_all()
    assert catalog.find("m").name == "m"


async def test_a_run_that_crashed_begins_with_what_is_missing(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor starts it again; no further snapshot may be needed."""
    wants(catalog, make_card())
    catalog._changed.clear()  # as the run that crashed left it
    loaded, load = asyncio.Event(), catalog._load_all

    async def load_all() -> bool:
        complete: bool = await load()
        loaded.set()
        return complete

    monkeypatch.setattr(catalog, "_load_all", load_all)
    running = asyncio.create_task(catalog.run())
    async with asyncio.timeout(30):
        await loaded.wait()
    await cancel_and_wait(running)
    assert catalog.find("m").name == "m"
