"""API keys ``hr_<id>_<secret>``: found by their public part, compared by a keyed hash. Knows no tenant's limits."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace_policy.limits import Limit

_FORM = re.compile(r"hr_([A-Za-z0-9]{1,64})_[A-Za-z0-9_\-]{1,256}")
_NO_HASH = bytes(32)


@dataclass(frozen=True)
class Key:
    """One key of the snapshot; times are Unix seconds, 0 = never."""

    key_id: str
    hash: bytes
    tenant: str
    project: str
    models: frozenset[str]
    expires_at_s: int
    revoked: bool
    slo_class: str
    scopes: tuple[str, ...]
    limits: tuple[Limit, ...]


def find(credential: str, keys: Mapping[str, Key], secret: bytes, now_s: float) -> Key | None:
    """The key that ``credential`` is, if valid at ``now_s``. An unknown id takes as long as a wrong hash."""
    form = _FORM.fullmatch(credential)
    key = keys.get(form.group(1)) if form else None
    digest = hmac.digest(secret, credential.encode("utf-8", "replace"), "sha256")
    same = hmac.compare_digest(digest, key.hash if key else _NO_HASH)
    if key is None or not same or key.revoked or 0 < key.expires_at_s <= now_s:
        return None
    return key
