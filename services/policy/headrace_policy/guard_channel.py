"""The channel to the gateway that guard rules are asked through: plaintext, TLS, or TLS that shows who we are."""

import grpc

from headrace_kit import channels
from headrace_kit.channels import Tls, Trust
from headrace_policy.config import PolicyConfig


def connect(config: PolicyConfig) -> grpc.aio.Channel | None:
    """None: no gateway was named. A public listener takes no service token, so none is sent."""
    if config.guard_gateway is None:
        return None
    name = [("grpc.ssl_target_name_override", config.guard_name)] if config.guard_name else []
    return channels.connect(config.guard_gateway, token=None, tls=_tls(config), options=name)


def _tls(config: PolicyConfig) -> Tls | Trust | None:
    if config.guard_ca is None:
        return None
    if config.guard_mutual and config.tls_cert is not None and config.tls_key is not None:
        return Tls(config.guard_ca, config.tls_cert, config.tls_key)
    return Trust(config.guard_ca)
