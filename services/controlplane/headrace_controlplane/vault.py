"""Secrets that are drawn once and kept in files of mode 0600. Knows not what they protect."""

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from headrace_kit.files import write_atomically

_BYTES = 32


@dataclass(frozen=True)
class Vault:
    """The fleet's two secrets; losing one makes every key void, or every cached prefix."""

    salt_secret: bytes
    """Under it tenants and sharing groups become prefix salts."""
    key_secret: bytes
    """Under it API keys are hashed."""

    @classmethod
    def open(cls, directory: Path) -> "Vault":
        """Reads both, or draws those that are missing; raises ValueError if a file holds no secret."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(_read_or_draw(directory / "salt_secret"), _read_or_draw(directory / "key_secret"))

    def key_hash(self, key: str) -> bytes:
        """HMAC-SHA-256 of a whole API key."""
        return hmac.digest(self.key_secret, key.encode(), "sha256")


def admin_key_hash(key: str) -> str:
    """SHA-256, hexadecimal; the key is random, so nothing slower is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


def ensure_admin_key(path: Path, known_hash: str | None) -> str:
    """The hash to keep: of the key in ``path``, else ``known_hash``, else of a new key that is written there."""
    if path.exists():
        key = path.read_text("utf-8").strip()
        if len(key) < 16:
            raise ValueError(f"the admin key file {path} holds no key of at least 16 characters")
        return admin_key_hash(key)
    if known_hash is not None:
        return known_hash
    key = f"hradmin_{secrets.token_urlsafe(32)}"
    write_atomically(path, f"{key}\n".encode(), mode=0o600)
    return admin_key_hash(key)


def _read_or_draw(path: Path) -> bytes:
    if path.exists():
        secret = path.read_bytes()
        if len(secret) != _BYTES:
            raise ValueError(f"{path} does not hold a secret of {_BYTES} bytes")
        return secret
    secret = os.urandom(_BYTES)
    write_atomically(path, secret, mode=0o600)
    return secret
