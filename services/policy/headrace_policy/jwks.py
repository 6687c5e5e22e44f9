"""Public keys of the token issuer: fetched, cached in memory and on disk; the last good set stays while it is away."""

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jwt import PyJWK
from jwt.exceptions import PyJWTError

from headrace_kit import telemetry
from headrace_kit.files import write_atomically

log = logging.getLogger(__name__)
EVERY_S = 300.0
SOONEST_S = 10.0
"""A token with an unknown key id may be the first of a new key: the set is fetched again, but no oftener than this."""
_FETCH_S = 5.0
_MOST_BYTES = 1_000_000
_failures = telemetry.counter("jwks_failures_total", "Fetches of the issuer's keys that failed")


class Jwks:
    """``run`` for ``host.tasks.start``; ``find`` never waits."""

    def __init__(self, url: str, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._path, self._clock = url, path, clock
        self._keys: dict[str, PyJWK] = {}
        self._wanted = asyncio.Event()
        self._fetched_at = float("-inf")

    def find(self, key_id: str) -> PyJWK | None:
        """None if the set in hand has no such key; then a newer set is on its way."""
        key = self._keys.get(key_id)
        if key is None:
            self._wanted.set()
        return key

    async def run(self) -> None:
        await self._start_from_disk()
        while True:
            await self.refresh()
            self._wanted.clear()
            try:
                await asyncio.wait_for(self._wanted.wait(), EVERY_S)
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, self._fetched_at + SOONEST_S - self._clock()))

    async def refresh(self) -> None:
        """Fetches the set; a set that cannot be used changes nothing."""
        self._fetched_at = self._clock()
        try:
            content = await asyncio.to_thread(_fetch, self._url)
            self._keys = _read(content)
            await asyncio.to_thread(write_atomically, self._path, content)
        except (OSError, ValueError) as error:
            _failures.inc()
            log.warning("jwks_not_fetched", extra={"detail": str(error), "num_keys": len(self._keys)})

    async def _start_from_disk(self) -> None:
        if not self._keys and await asyncio.to_thread(self._path.exists):
            try:
                self._keys = _read(await asyncio.to_thread(self._path.read_bytes))
            except (OSError, ValueError) as error:
                log.warning("jwks_on_disk_unreadable", extra={"detail": str(error)})


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_FETCH_S) as answer:
        content: bytes = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("the set of keys is larger than a megabyte")
    return content


def _read(content: bytes) -> dict[str, PyJWK]:
    """Signing keys by id; raises ValueError if there is none. A key of a kind that we do not know is left out."""
    document: Any = json.loads(content)
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("the document holds no list of keys")
    found: dict[str, PyJWK] = {}
    for row in rows:
        # A shared secret has no place in a public set: whoever reads it could sign.
        if not isinstance(row, dict) or not row.get("kid") or row.get("kty") == "oct" or row.get("use", "sig") != "sig":
            continue
        try:
            found[str(row["kid"])] = PyJWK(row)
        except PyJWTError as error:
            log.warning("jwk_left_out", extra={"kid": str(row["kid"]), "detail": type(error).__name__})
    if not found:
        raise ValueError("the document holds no usable key")
    return found
