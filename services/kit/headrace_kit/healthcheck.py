"""`headrace-healthcheck`: one question of grpc.health.v1; exit 0 serving, 1 not, 2 configuration. For container probes.

Imports little, for it runs every few seconds.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace_kit import settings

_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class HealthcheckConfig:
    """Whether the service that listens at a target serves."""

    target: str = field(metadata={"help": "gRPC target"})
    peer: str = field(default="localhost", metadata={"help": "name in the certificate of the target"})
    tls_ca: Path | None = field(default=None, metadata={"help": "authority of mutual TLS; none: no TLS"})
    tls_cert: Path = field(default=Path("cert.pem"), metadata={"help": "certificate to show"})
    tls_key: Path = field(default=Path("key.pem"), metadata={"help": "key of the certificate"})


def ask(config: HealthcheckConfig) -> str:
    """Empty if the target serves, else why not. Raises OSError for a file that cannot be read."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", config.peer)]
    if config.tls_ca is None:
        channel = grpc.insecure_channel(config.target, options[:1])
    else:
        files = (config.tls_ca, config.tls_key, config.tls_cert)
        credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        channel = grpc.secure_channel(config.target, credentials, options)
    with channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error)
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "" if serving else health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def main() -> None:
    try:
        problem = ask(settings.load(HealthcheckConfig, service="healthcheck"))
    except OSError as error:
        raise SystemExit(f"headrace-healthcheck: {error}") from None
    if problem:
        print(problem, file=sys.stderr)
    raise SystemExit(1 if problem else 0)


if __name__ == "__main__":
    main()
