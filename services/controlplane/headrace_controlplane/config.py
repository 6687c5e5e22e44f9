"""The control plane's one configuration. What should exist is no configuration: it is the fleet file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def _help(meaning: str) -> dict[str, str]:
    return {"help": meaning}


@dataclass(frozen=True, kw_only=True)
class ControlplaneConfig:
    """What should exist in a fleet, as one versioned snapshot; the registry of replicas; launching."""

    service_token_file: Path = field(metadata=_help("file with the service token (decision 21)"))
    state_dir: Path = field(metadata=_help("directory of the store, the artifacts, the secrets and the replicas"))

    fleet: Path | None = field(
        default=None, metadata=_help("fleet file for a store that is empty; none: one small model on CPU")
    )
    admin_key_file: Path | None = field(
        default=None,
        metadata=_help(
            "file with the admin key, made when neither it nor a key is known; none: admin_key in state_dir"
        ),
    )
    bootstrap_key_file: Path | None = field(
        default=None,
        metadata=_help("file that gets an API key of tenant dev, or of the first tenant; none: no such key"),
    )
    devices: str = field(
        default="",
        metadata=_help(
            "CUDA devices of this host by fast-link domain, such as 0,1,2,3;4,5,6,7, that launched workers are placed "
            "on; empty: what NVML says"
        ),
    )
    lease_s: float = field(default=10.0, metadata=_help("how long a replica lives without being heard of"))
    max_traces: int = field(default=2000, metadata=_help("last traces that are kept in memory, for headrace trace"))
    max_trace_bytes: int = field(default=64 * 1024 * 1024, metadata=_help("most memory that they take"))
    advertise: str | None = field(
        default=None, metadata=_help("gRPC target that launched workers register with; none: as bound")
    )
    weights_dir: Path | None = field(
        default=None, metadata=_help("what launched workers download goes here; none: weights in state_dir")
    )
    ray_address: str = field(
        default="auto", metadata=_help("Ray cluster of pools with launcher ray; auto: this host's")
    )
    ray_namespace: str = field(default="headrace", metadata=_help("namespace there whose actors are all ours"))
    ray_dir: Path = field(
        default=Path("/var/tmp/headrace"),
        metadata=_help("directory on each Ray node for logs and downloads of replicas"),
    )

    grpc_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the gRPC listener"))
    http_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the internal HTTP listener"))
    announce: Path | None = field(default=None, metadata=_help("file that gets the bound addresses as JSON"))
    drain_s: float = field(default=5.0, metadata=_help("time that calls in flight get when the process is stopped"))
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_help("least level that is logged")
    )
    otlp_endpoint: str | None = field(default=None, metadata=_help("where spans go (OTLP over gRPC); none: nowhere"))
    tls_ca: Path | None = field(default=None, metadata=_help("authority of mutual TLS; ca, cert and key come together"))
    tls_cert: Path | None = field(
        default=None, metadata=_help("certificate of this service and of the workers that it launches")
    )
    tls_key: Path | None = field(default=None, metadata=_help("key of the certificate"))

    def __post_init__(self) -> None:
        if not self.lease_s > 0:
            raise ValueError(f"lease_s: must be positive, is {self.lease_s}")
        for name in ("max_traces", "max_trace_bytes"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must not be negative, is {getattr(self, name)}")
        if not self.drain_s >= 0:
            raise ValueError(f"drain_s: must not be negative, is {self.drain_s}")
        if len({self.tls_ca is None, self.tls_cert is None, self.tls_key is None}) > 1:
            raise ValueError("tls_ca: ca, cert and key come together")
