"""The versions of the fleet: apply, roll back, keys and cards, each one new immutable snapshot. Knows no stream.

A bad change changes nothing. Keys live beside the file: neither apply nor rollback touches them.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headrace_controlplane import keys, revisions, sections
from headrace_controlplane.beside import Beside
from headrace_controlplane.fleet.file import Fleet, parse
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.revisions import Standing
from headrace_controlplane.store import Store, Version
from headrace_controlplane.trials import Trial, Trials
from headrace_controlplane.vault import Vault
from headrace_kit import telemetry
from headrace_kit.errors import HeadraceError

log = logging.getLogger(__name__)
_version = telemetry.gauge("fleet_version", "Newest version of the fleet file")


@dataclass(frozen=True)
class Current:
    """The newest version, whole."""

    row: Version
    fleet: Fleet
    sections: Mapping[str, bytes]
    served: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    """(revision, card digest) by model."""

    def section_hash(self, audience: str) -> bytes:
        """SHA-256 of one section."""
        return hashlib.sha256(self.sections[audience]).digest()


@dataclass(frozen=True)
class Surroundings:
    """What a snapshot depends on beyond this ledger: replicas that are ready, and cards."""

    serving: Callable[[], Mapping[tuple[str, str], int]] = dict
    """Replicas that are ready now by (model, revision)."""
    speech: Callable[[bytes], bytes] = bytes
    """See Beside."""


@dataclass(frozen=True)
class _Draft:
    """A version before it has a number."""

    kind: str
    comment: str
    text: str
    fleet: Fleet


class Ledger:
    """``current`` is the newest version, None before the first apply; ``changed`` is set and replaced at each."""

    def __init__(
        self,
        store: Store,
        vault: Vault,
        around: Surroundings = Surroundings(),
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._vault, self._around, self._wall = store, vault, around, wall
        self.trials = Trials(store)
        self.current: Current | None = None
        self.changed = asyncio.Event()
        newest = store.newest()
        if newest is not None:
            self._recover(newest)

    @property
    def version(self) -> int:
        return self.current.row.version if self.current else 0

    @property
    def vault(self) -> Vault:
        return self._vault

    def apply(self, text: str, comment: str, expected_version: int = 0) -> bool:
        """Puts a fleet file in force; False if it says what is in force. Raises InvalidFleet or InvalidRequest.

        A revision on trial that was halted goes on with it, its outcomes counted anew.
        """
        fleet = parse(text)
        if expected_version and expected_version != self.version:
            message = f"the newest version is {self.version}, not {expected_version}: look at the diff again"
            raise HeadraceError("invalid_argument", message, field="expected_version")
        if self.current is not None and fleet == self.current.fleet and not self.trials.halted(fleet):
            return False
        self._put_in_force(_Draft("apply", comment, text, fleet))
        return True

    def rollback(self, version: int) -> bool:
        """Makes the file of an older version the newest; False if it says what is in force."""
        row = self._store.version(version)
        if row is None:
            raise HeadraceError("invalid_argument", f"there is no version {version}", field="version")
        text = self._store.file(row.file_hash)
        fleet = parse(text)
        if self.current is not None and fleet == self.current.fleet:
            return False
        self._put_in_force(_Draft("rollback", f"to version {version}", text, fleet))
        return True

    def file_of(self, version: int) -> tuple[int, str]:
        """(version, fleet file) of a version, or of the newest for 0; raises InvalidRequest."""
        row = self._store.version(version) if version else self._store.newest()
        if row is None:
            raise HeadraceError("invalid_argument", f"there is no version {version or 'yet'}", field="version")
        return row.version, self._store.file(row.file_hash)

    def now_s(self) -> int:
        """Unix time in whole seconds."""
        return int(self._wall())

    def history(self, limit: int) -> list[Version]:
        return self._store.history(limit)

    def list_keys(self, tenant: str = "") -> list[StoredKey]:
        return self._store.list_keys(tenant)

    def create_key(self, wanted: StoredKey) -> tuple[StoredKey, str]:
        """Draws a key with the properties of ``wanted``; returns it and the whole key, which is kept nowhere."""
        current = self._in_force()
        if wanted.tenant not in current.fleet.tenants:
            raise HeadraceError("invalid_argument", f'there is no tenant "{wanted.tenant}"', field="tenant")
        if not wanted.project.isprintable():
            raise HeadraceError("invalid_argument", "expected printable characters", field="project")
        if len(self._live_keys()) >= keys.MAX_KEYS:
            raise HeadraceError(
                "invalid_argument", f"there are {keys.MAX_KEYS} keys already: revoke some", field="tenant"
            )
        key_id, whole = keys.draw()
        key = replace(wanted, key_id=key_id, hash=self._vault.key_hash(whole), created_at_s=self.now_s())
        comment = f"create {key_id} for {key.tenant}"
        self._republish("keys", comment, current, change=lambda: self._store.add_key(key))
        return key, whole

    def revoke_key(self, key_id: str) -> None:
        """Idempotent for a revoked key; raises InvalidRequest for an unknown one."""
        current, key = self._in_force(), self._store.key(key_id)
        if key is None:
            raise HeadraceError("invalid_argument", f'there is no key "{key_id}"', field="key_id")
        if key.revoked:
            return
        self._republish("keys", f"revoke {key_id}", current, change=lambda: self._store.revoke_key(key_id))

    def holds_key(self, whole: str) -> bool:
        """Whether this whole key is one of ours and not revoked."""
        key = self._store.key(whole.split("_")[1]) if whole.count("_") >= 2 else None
        return key is not None and not key.revoked and key.hash == self._vault.key_hash(whole)

    def card(self, model: str, revision: str) -> bytes:
        """Digest of the model card; empty if unknown."""
        return self._store.cards().get((model, revision), b"")

    def set_card(self, model: str, revision: str, digest: bytes) -> None:
        """Records a model card; a new version if the fleet names that model and revision."""
        current = self._in_force()
        named = current.fleet.models.get(model)
        if named is None or revision not in (named.revision, named.canary.revision if named.canary else None):
            return self._store.set_card(model, revision, digest)
        comment = f"card of {model} {revision}"
        self._republish("cards", comment, current, change=lambda: self._store.set_card(model, revision, digest))

    def note_ready(self, model: str, revision: str) -> None:
        """A replica is ready: a new version if gateways waited for its revision, whose card is known."""
        current = self._in_force()
        named, served = current.fleet.models.get(model), current.served.get(model)
        if named is None or named.revision != revision or served is None or served[0] == revision:
            return
        if revisions.served(current.fleet, model, self._beside(current.fleet))[0] == revision:
            self._republish("cards", f"{model} {revision} is ready", current)

    def halt(self, trial: Trial, reason: str) -> None:
        """Takes the share of a revision on trial away, until an apply."""
        row = trial.row
        self._republish(
            *("halt", f"{row.model} {row.revision}: {reason}", self._in_force()),
            change=lambda: self.trials.halt(trial, reason),
        )

    def standing(self, model: str) -> Standing:
        """How the trial of the model's revision on trial stands."""
        current = self._in_force()
        return revisions.standing(current.fleet, model, self._beside(current.fleet))

    def stay_ahead_of(self, version: int) -> None:
        """A subscriber runs a newer version than ours, so our store was lost: number on from there."""
        if self.current is None or version <= self.version:
            return
        log.warning("store_was_behind", extra={"version": self.version, "subscriber_version": version})
        self._republish("recover", f"after version {version}", self.current, version=version + 1)

    def _recover(self, newest: Version) -> None:
        fleet, stored = parse(self._store.file(newest.file_hash)), self._store.sections(newest.version)
        self.current = Current(newest, fleet, stored, sections.served_in(stored))
        _version.set(self.version)
        # Another release of ours may build other bytes: a version never changes, so those are a new one.
        if self._build(fleet) != stored:
            self._republish("recover", f"rebuilt version {newest.version}", self.current)

    def _republish(
        self,
        kind: str,
        comment: str,
        current: Current,
        *,
        change: Callable[[], None] | None = None,
        version: int | None = None,
    ) -> None:
        """The same file once more, with what ``change`` does beside it."""
        self._put_in_force(
            _Draft(kind, comment, self._store.file(current.row.file_hash), current.fleet), change, version
        )

    def _put_in_force(
        self, draft: "_Draft", change: Callable[[], None] | None = None, version: int | None = None
    ) -> None:
        now_s, number = self.now_s(), version or self.version + 1
        try:
            with self._store.transaction():
                if change is not None:
                    change()
                self.trials.adjust(draft.fleet, number, resume=draft.kind == "apply")
                for name in draft.fleet.models:
                    self._store.add_model(name, now_s)
                built = self._build(draft.fleet)
                parts = b"".join(hashlib.sha256(built[name]).digest() for name in sorted(built))
                file_hash = self._store.add_file(draft.text)
                row = Version(number, now_s, draft.kind, draft.comment, file_hash, hashlib.sha256(parts).digest())
                self._store.add_version(row, built)
        except BaseException:
            self.trials.forget_changes()
            raise
        self.current = Current(row, draft.fleet, built, sections.served_in(built))
        _version.set(self.version)
        log.info("version_published", extra={"version": row.version, "kind": row.kind, "comment": row.comment})
        self.changed.set()
        self.changed = asyncio.Event()

    def _build(self, fleet: Fleet) -> dict[str, bytes]:
        return sections.build(fleet, self._beside(fleet))

    def _beside(self, fleet: Fleet) -> Beside:
        return Beside(
            self._vault,
            # Keys of a tenant that left the file are kept, and come back with it.
            [key for key in self._live_keys() if key.tenant in fleet.tenants],
            self._store.cards(),
            self._store.models_added(),
            self.current.served if self.current else {},
            self._around.serving(),
            self.trials.rows(),
            self._around.speech,
        )

    def _live_keys(self) -> list[StoredKey]:
        return [key for key in self._store.list_keys() if not key.revoked]

    def _in_force(self) -> Current:
        if self.current is None:
            raise HeadraceError("invalid_argument", "no fleet file was applied yet")
        return self.current
