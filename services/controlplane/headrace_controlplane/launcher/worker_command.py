"""The command line of a pool's workers. Knows the worker's flags and nothing of how processes are run."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace_controlplane.fleet.file import Fleet
from headrace_controlplane.launcher.base import LaunchSpec
from headrace_controlplane.placement import Host


@dataclass(frozen=True)
class WorkerSite:
    """What every worker of this host is told, whatever its pool."""

    controlplane: str
    service_token_file: Path
    state_dir: Path
    directory: Path
    """Where the launcher keeps the files of replicas."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further flags, such as those of mutual TLS."""
    devices: Host | None = None
    """CUDA devices that workers are placed on; None: not known."""


def settings(fleet: Fleet, pool_name: str) -> dict[str, str]:
    """Flags by name that follow from the fleet file alone."""
    pool = fleet.pools[pool_name]
    model, source = fleet.models[pool.model], fleet.source_of(pool_name)
    flags: dict[str, object | None] = {
        "engine": pool.engine,
        "model": pool.model,
        "source": None if source == "scripted" else source,
        "revision": fleet.revision_of(pool_name),
        "device": pool.device,
        "card": pool.card or None,
        "precision": pool.precision,
        "quantization": pool.quantization if pool.quantization != "auto" else None,
        "kv-precision": pool.kv_precision if pool.kv_precision != "same" else None,
        "attention": pool.attention if pool.attention != "auto" else None,
        "tp": pool.tp if pool.tp > 1 else None,
        "pp": pool.pp if pool.pp > 1 else None,
        "page-tokens": pool.page_tokens,
        "num-pages": pool.num_pages,
        "kv-bytes": pool.kv_bytes,
        "max-context": pool.max_context_tokens,
        "default-output": model.default_max_output_tokens,
        "max-waiting": pool.max_waiting,
        "max-running": pool.max_running,
        "max-batch-tokens": pool.max_batch_tokens,
        "max-chunk-tokens": pool.max_chunk_tokens,
        "statistical-overrun": pool.statistical_overrun or None,
        "deterministic": "true" if pool.deterministic else None,
        "threads": pool.threads,
        "pool": pool_name,
        "role": pool.role,
        "kv-transport": pool.kv_transport if pool.role == "decode" else None,
        "drain-s": fleet.rollout.drain_s,
    }
    return {name: str(value) for name, value in flags.items() if value is not None}


def digest(fleet: Fleet, pool_name: str) -> str:
    """Names the settings; how long a replica may drain is none that needs a new one."""
    relevant = {name: value for name, value in settings(fleet, pool_name).items() if name != "drain-s"}
    if fleet.pools[pool_name].launcher == "ray":
        relevant["launcher"] = "ray"
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:16]


def launch_spec(fleet: Fleet, pool_name: str, replica_id: str, site: WorkerSite) -> LaunchSpec:
    flags = {
        **settings(fleet, pool_name),
        "replica-id": replica_id,
        "controlplane": site.controlplane,
        "service-token-file": str(site.service_token_file),
        "state-dir": str(site.state_dir),
        "announce": str(site.directory / f"{replica_id}.announce"),
        **site.extra,
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    pool = fleet.pools[pool_name]
    return LaunchSpec(
        replica_id,
        pool_name,
        pool.model,
        digest(fleet, pool_name),
        (sys.executable, "-m", "headrace_worker", *words),
        fleet.rollout.drain_s,
        launcher=pool.launcher,
        num_cpus=pool.num_devices * (1 if pool.device == "cuda" else pool.threads or 1),
        num_gpus=pool.num_devices if pool.device == "cuda" else 0,
    )
