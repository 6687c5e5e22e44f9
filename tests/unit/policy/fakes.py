"""Sections, keys and requests as the control plane and a gateway would make them."""

import hmac
from typing import Any

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import response_pb2, snapshot_pb2

SECRET = b"s" * 32
KEY = "hr_test_AAAA1111"


def api_key(whole: str = KEY, tenant: str = "acme", **fields: Any) -> snapshot_pb2.ApiKey:
    key_id = whole.split("_")[1]
    digest = hmac.digest(SECRET, whole.encode(), "sha256")
    return snapshot_pb2.ApiKey(key_id=key_id, hash=digest, tenant=tenant, **fields)


def limit(name: str, capacity: float, scope: str = "tenant", subject: str = "") -> snapshot_pb2.Limit:
    return snapshot_pb2.Limit(name=name, capacity=capacity, scope=scope, subject=subject)


def section(*limits: snapshot_pb2.Limit, **fields: Any) -> snapshot_pb2.PolicySection:
    """One tenant "acme" with these limits and one key."""
    given: dict[str, Any] = {
        "keys": [api_key()],
        "tenants": [snapshot_pb2.Tenant(id="acme", limits=limits)],
        "key_secret": SECRET,
        "default_slo_class": "standard",
        **fields,
    }
    return snapshot_pb2.PolicySection(**given)


def reservation(
    response_id: str, identity: pb.Identity, num_prompt: int = 8, max_output: int = 50, n: int = 1
) -> pb.Reservation:
    bounds = response_pb2.Bounds(num_prompt_tokens=num_prompt, max_output_tokens=max_output, n=n)
    return pb.Reservation(response_id=response_id, identity=identity, gateway_id="g1", model="m", bounds=bounds)


def settlement(held: pb.Reservation, kind: str = "completed", num_output: int = 0, **fields: Any) -> pb.SettleRequest:
    """The owner's settlement of a created response."""
    given: dict[str, Any] = {
        "reservation": held,
        "created": True,
        "kind": response_pb2.TerminalKind.Value(f"TERMINAL_KIND_{kind.upper()}"),
        "num_prompt_tokens": held.bounds.num_prompt_tokens,
        "num_output_tokens": num_output,
        "num_delivered_tokens": num_output,
        "source": pb.SETTLEMENT_SOURCE_OWNER,
        **fields,
    }
    return pb.SettleRequest(**given)
