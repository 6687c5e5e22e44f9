"""The router's one configuration. Pools and classes are no configuration: they are in the snapshot."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def _help(meaning: str) -> dict[str, str]:
    return {"help": meaning}


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """Which ready replica serves a request. Decides and is told what came of it; never carries tokens."""

    service_token_file: Path = field(metadata=_help("file with the service token (decision 21)"))
    state_dir: Path = field(metadata=_help("directory of the last good snapshot and list of replicas"))
    controlplane: str = field(metadata=_help("gRPC target of the control plane"))

    redis: str | None = field(
        default=None,
        repr=False,
        metadata={**_help("unix:///PATH or redis://HOST:PORT of the prefix index; none: no index"), "secret": True},
    )
    advertise: str | None = field(default=None, metadata=_help("gRPC target of this router for others; none: as bound"))
    num_explained: int = field(default=1000, metadata=_help("decisions that can be explained"))
    seed: int | None = field(default=None, metadata=_help("seed of the draw between equals; none: another each time"))

    grpc_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the gRPC listener"))
    http_listen: str = field(default="127.0.0.1:0", metadata=_help("address of the internal HTTP listener"))
    announce: Path | None = field(default=None, metadata=_help("file that gets the bound addresses as JSON"))
    drain_s: float = field(default=5.0, metadata=_help("time that calls in flight get when the process is stopped"))
    log_level: Literal["debug", "info", "warning", "error"] = field(
        default="info", metadata=_help("least level that is logged")
    )
    otlp_endpoint: str | None = field(
        default=None, metadata=_help("OTLP/gRPC collector that gets spans beside the control plane; none: no other")
    )
    tls_ca: Path | None = field(default=None, metadata=_help("authority of mutual TLS; ca, cert and key come together"))
    tls_cert: Path | None = field(default=None, metadata=_help("certificate of this service"))
    tls_key: Path | None = field(default=None, metadata=_help("key of the certificate"))

    def __post_init__(self) -> None:
        if self.redis is not None and not self.redis.startswith(("unix://", "redis://", "rediss://")):
            raise ValueError("redis: expected unix:///PATH, redis://HOST:PORT or rediss://HOST:PORT")
        if not self.num_explained > 0:
            raise ValueError(f"num_explained: must be positive, is {self.num_explained}")
        if not self.drain_s >= 0:
            raise ValueError(f"drain_s: must not be negative, is {self.drain_s}")
        if len({self.tls_ca is None, self.tls_cert is None, self.tls_key is None}) > 1:
            raise ValueError("tls_ca: ca, cert and key come together")
