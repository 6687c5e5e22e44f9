"""Lets operators in, and nobody else (decision 21): the service token, checked before, opens nothing here by itself."""

import hmac
from typing import Any

from headrace_controlplane.vault import admin_key_hash
from headrace_kit.errors import HeadraceError

METADATA_KEY = "x-headrace-admin-key"


class AdminGate:
    """Keeps the hash of the admin key, never the key."""

    def __init__(self, key_hash: str) -> None:
        self._key_hash = key_hash

    def check(self, context: Any) -> None:
        """Raises PermissionDenied if the call carries no admin key, a tenant's or another one."""
        given = dict(context.invocation_metadata() or ()).get(METADATA_KEY, "")
        text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        if not hmac.compare_digest(admin_key_hash(text), self._key_hash):
            raise HeadraceError("permission_denied", f"this call needs the admin key in {METADATA_KEY}")
