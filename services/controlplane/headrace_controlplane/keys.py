"""API keys as the control plane keeps them: without their secret. Knows no store."""

import secrets
import string
from dataclasses import dataclass

MAX_KEYS = 20_000
SCOPES = ("inference",)
_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 12


@dataclass(frozen=True)
class StoredKey:
    """One key; ``hash`` is the HMAC-SHA-256 of the whole key. Times are Unix seconds, 0 = never."""

    key_id: str
    hash: bytes
    tenant: str
    project: str = ""
    models: tuple[str, ...] = ()
    expires_at_s: int = 0
    revoked: bool = False
    created_at_s: int = 0
    slo_class: str = ""
    scopes: tuple[str, ...] = ("inference",)


def draw() -> tuple[str, str]:
    """A new (key id, whole key): ``hr_<id>_<secret>``, 256 random bits."""
    key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    return key_id, f"hr_{key_id}_{secrets.token_urlsafe(32)}"
