"""The policy service's one configuration. Keys, tenants, prices and rules are no configuration: they are snapshot."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


def _help(meaning: str) -> dict[str, str]:
    return {"help": meaning}


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Who is calling, what they may spend, what may be said. Never sees a token id or a replica."""

    service_token_file: Path = field(metadata=_help("file with the service token (decision 21)"))
    state_dir: Path = field(metadata=_help("directory of the last good snapshot and of the usage journal"))
    controlplane: str = field(metadata=_help("gRPC target of the control plane"))
    redis: str = field(
        repr=False,
        metadata={**_help("unix:///PATH, redis://HOST:PORT or redis+cluster://HOST:PORT"), "secret": True},
    )

    redis_decide_s: float = field(
        default=0.08, metadata=_help("silence of Redis after which an admission is decided without it")
    )
    advertise: str | None = field(default=None, metadata=_help("gRPC target of this process for others; none: bound"))
    lease_s: float = field(default=30.0, metadata=_help("life of a reservation that nobody renews"))

    journal: Literal["sqlite", "file"] = field(
        default="sqlite", metadata=_help("how usage is kept in state_dir; a change leaves what was kept before aside")
    )

    jwks_url: str | None = field(default=None, metadata=_help("where the token issuer's public keys are; none: no JWT"))
    jwt_issuer: str | None = field(default=None, metadata=_help("issuer that a token must name"))
    jwt_audience: str | None = field(default=None, metadata=_help("audience that a token must name"))
    jwt_tenant_claim: str = field(default="tenant", metadata=_help("claim of a token that names the tenant"))

    guard_gateway: str | None = field(default=None, metadata=_help("public gRPC target of a gateway for guard rules"))

    guard_ca: Path | None = field(
        default=None, metadata=_help("authority of that gateway's certificate; none: it is called in plaintext")
    )
    guard_name: str | None = field(
        default=None, metadata=_help("name in that gateway's certificate; none: the host of guard_gateway")
    )
    guard_mutual: bool = field(default=False, metadata=_help("show that gateway tls_cert: it asks who calls"))

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
        if not self.redis.startswith(("unix://", "redis://", "rediss://", "redis+cluster://")):
            raise ValueError("redis: expected unix:///PATH, redis://HOST:PORT or redis+cluster://HOST:PORT")
        if len({self.jwks_url is None, self.jwt_issuer is None, self.jwt_audience is None}) > 1:
            raise ValueError("jwks_url: jwks_url, jwt_issuer and jwt_audience come together")
        if self.jwks_url is not None and not self.jwks_url.startswith(("https://", "http://")):
            raise ValueError("jwks_url: expected an http or https URL")
        if not 0 < self.redis_decide_s < 1:  # what nobody waits for is tried for a second
            raise ValueError(f"redis_decide_s: must be above 0 and below 1, is {self.redis_decide_s}")
        if not self.lease_s > 0:
            raise ValueError(f"lease_s: must be positive, is {self.lease_s}")
        if not self.drain_s >= 0:
            raise ValueError(f"drain_s: must not be negative, is {self.drain_s}")
        if len({self.tls_ca is None, self.tls_cert is None, self.tls_key is None}) > 1:
            raise ValueError("tls_ca: ca, cert and key come together")
        if self.guard_gateway is None and (self.guard_ca or self.guard_name or self.guard_mutual):
            raise ValueError("guard_gateway: guard_ca, guard_name and guard_mutual say how it is called")
        if self.guard_ca is None and (self.guard_name or self.guard_mutual):
            raise ValueError("guard_ca: guard_name and guard_mutual need it")
        if self.guard_mutual and self.tls_cert is None:
            raise ValueError("guard_mutual: needs tls_ca, tls_cert and tls_key")
