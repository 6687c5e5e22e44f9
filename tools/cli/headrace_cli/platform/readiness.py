"""Whether the platform answers: its four services by their probes, its replicas by the registry."""

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import yaml

from headrace.v1 import fleet_pb2 as fleet
from headrace.v1 import worker_pb2 as worker
from headrace_cli.client import AsyncClient
from headrace_cli.platform.admin import Admin, ControlPlaneAway
from headrace_cli.platform.state_dir import SERVICES, StateDir
from headrace_kit.errors import HeadraceError

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Readiness:
    """What runs and what is still missing; ``missing`` is empty once a request can be answered."""

    services: dict[str, bool]
    replicas: list[fleet.Replica] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def probe(http: str) -> bool:
    """Whether /readyz of an internal HTTP listener answers 200."""
    try:
        with _DIRECT.open(f"http://{http}/readyz", timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
        return False


async def service_ready(state: StateDir, service: str) -> bool:
    announced = state.announced(service)
    return announced is not None and await asyncio.to_thread(probe, announced["http"])


async def inspect(state: StateDir) -> Readiness:
    """One look at everything."""
    ready = dict(zip(SERVICES, await asyncio.gather(*(service_ready(state, name) for name in SERVICES)), strict=True))
    missing = [f"{name} is not ready" for name, is_ready in ready.items() if not is_ready]
    if state.announced("controlplane") is None or not state.admin_key.exists():
        return Readiness(ready, missing=missing or ["the control plane has not announced itself"])
    try:
        async with Admin(state) as admin:
            replicas, fleet_yaml = await asyncio.gather(admin.replicas(), admin.fleet_yaml())
    except (HeadraceError, ControlPlaneAway) as error:
        return Readiness(ready, missing=[*missing, str(error)])
    missing += _missing_replicas(replicas, fleet_yaml)
    if not missing:
        missing += await _missing_models(state, fleet_yaml)
    return Readiness(ready, replicas, missing)


async def _missing_models(state: StateDir, fleet_yaml: str) -> list[str]:
    """Whether the gateway can serve what has replicas: it fetches the card of a new model first."""
    announced = state.announced("gateway")
    if announced is None or not state.api_key.exists():
        return []
    async with AsyncClient(announced["public_grpc"], api_key=state.read_secret(state.api_key)) as client:
        try:
            known = {model.id for model in await client.models(timeout_s=5.0)}
        except HeadraceError as error:
            return [f"the gateway lists no models: {error.message}"]
    pools = ((yaml.safe_load(fleet_yaml) or {}).get("pools") or {}).values()
    served = {pool["model"] for pool in pools if pool.get("min", 1)}
    # The key's tenant may be allowed some of them only, so one is enough.
    return [] if served & known or not served else ["the gateway knows no model yet"]


def _missing_replicas(replicas: list[fleet.Replica], fleet_yaml: str) -> list[str]:
    """One line per pool that has fewer ready replicas than its minimum."""
    pools = (yaml.safe_load(fleet_yaml) or {}).get("pools") or {}
    lines = []
    for name, pool in pools.items():
        own = [replica for replica in replicas if replica.pool == name]
        ready = sum(replica.state == worker.REPLICA_STATE_READY for replica in own)
        wanted = pool.get("min", 1)
        if ready < wanted:
            lines.append(f"pool {name}: {ready} of {wanted} replicas are ready")
    return lines
