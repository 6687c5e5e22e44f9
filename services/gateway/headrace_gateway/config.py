"""Everything that can be set on a gateway: field = flag = environment variable = key of the file."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """The public edge: identity, tokens in and text out, and the one ordered stream of every response."""

    controlplane: str = field(metadata={"help": "gRPC target of the control plane"})
    policy: str = field(metadata={"help": "gRPC target of policy"})
    router: str = field(metadata={"help": "gRPC target of the router"})
    service_token_file: Path = field(metadata={"help": "file with the token that our services show one another"})
    state_dir: Path = field(metadata={"help": "directory for the last snapshot, model cards and the settlement outbox"})
    public_grpc_listen: str = field(default="127.0.0.1:0", metadata={"help": "public address of Inference"})
    public_http_listen: str = field(default="127.0.0.1:0", metadata={"help": "public address of the OpenAI API"})
    grpc_listen: str = field(default="127.0.0.1:0", metadata={"help": "internal gRPC address"})
    http_listen: str = field(default="127.0.0.1:0", metadata={"help": "internal HTTP address: metrics and probes"})
    announce: Path | None = field(default=None, metadata={"help": "file that says where this process listens"})
    drain_s: float = field(default=10.0, metadata={"help": "seconds that running streams get when the process stops"})
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})
    otlp_endpoint: str | None = field(
        default=None, metadata={"help": "OTLP/gRPC collector that gets spans beside the control plane; none: no other"}
    )
    trace_share: float = field(
        default=1.0, metadata={"help": "share of ordinary traces that is kept; errors and broken budgets always are"}
    )
    trace_per_s: float = field(default=10.0, metadata={"help": "most ordinary traces that are kept in a second"})
    advertise: str | None = field(default=None, metadata={"help": "internal gRPC target for others; none: as bound"})
    tls_ca: Path | None = field(default=None, metadata={"help": "authority of mutual TLS; ca, cert and key together"})
    tls_cert: Path | None = field(default=None, metadata={"help": "certificate of this service"})
    tls_key: Path | None = field(default=None, metadata={"help": "key of the certificate"})
    public_tls_cert: Path | None = field(
        default=None, metadata={"help": "certificate chain of the public listeners; cert and key together"}
    )
    public_tls_key: Path | None = field(default=None, metadata={"help": "key of that certificate"})
    max_body_bytes: int = field(default=4 * 1024 * 1024, metadata={"help": "largest HTTP body"})
    max_total_s: float = field(default=3600.0, metadata={"help": "longest response, whatever its client allows"})
    max_buffered_bytes: int = field(
        default=256 * 1024 * 1024,
        metadata={"help": "text waiting for slow clients, over all streams; the slowest reader is ended above it"},
    )
    frame_timeout_s: float = field(default=5.0, metadata={"help": "a worker that sends nothing for so long is lost"})

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_total_s", "max_buffered_bytes", "frame_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0, not {getattr(self, name)}")
        if not 0 <= self.trace_share <= 1:
            raise ValueError(f"trace_share must be from 0 to 1, not {self.trace_share}")
        if not self.trace_per_s >= 0:
            raise ValueError(f"trace_per_s must not be negative, is {self.trace_per_s}")
        if len({self.tls_ca is None, self.tls_cert is None, self.tls_key is None}) > 1:
            raise ValueError("tls_ca: ca, cert and key come together")
        if (self.public_tls_cert is None) != (self.public_tls_key is None):
            raise ValueError("public_tls_cert: cert and key come together")
