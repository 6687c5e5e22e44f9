"""The command line of every process that `headrace up` starts. The workers are the control plane's."""

import sys
from collections.abc import Mapping
from pathlib import Path

from headrace_cli.platform.state_dir import StateDir, weights_cache

Addresses = Mapping[str, Mapping[str, str]]


def service_command(service: str, state: StateDir, addresses: Addresses, fleet: Path | None) -> list[str]:
    """Flags as documented by `headrace-SERVICE --help`."""
    flags = {
        "grpc-listen": addresses[service]["grpc"],
        "http-listen": addresses[service]["http"],
        "service-token-file": state.service_token,
        "state-dir": state.of(service),
        "announce": state.announce(service),
        **_own_flags(service, state, addresses, fleet),
    }
    words = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return [sys.executable, "-m", f"headrace_{service}", *words]


def _own_flags(service: str, state: StateDir, addresses: Addresses, fleet: Path | None) -> dict[str, Path | str | None]:
    target = {name: entry["grpc"] for name, entry in addresses.items()}
    match service:
        case "controlplane":
            return {
                "fleet": fleet,
                "admin-key-file": state.admin_key,
                "bootstrap-key-file": state.api_key,
                "weights-dir": weights_cache(),
            }
        case "policy":
            return {
                "controlplane": target["controlplane"],
                "redis": f"unix://{state.redis_socket}",
                "guard-gateway": addresses["gateway"]["public_grpc"],
            }
        case "router":
            return {"controlplane": target["controlplane"], "redis": f"unix://{state.redis_socket}"}
        case _:
            return {
                "controlplane": target["controlplane"],
                "policy": target["policy"],
                "router": target["router"],
                "public-grpc-listen": addresses["gateway"]["public_grpc"],
                "public-http-listen": addresses["gateway"]["public_http"],
            }
