"""Versions: immutable, monotonic, rolled back by making them new, and untouched by what is bad. Keys live beside."""

import dataclasses
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.v1 import snapshot_pb2
from headrace_controlplane.fleet.problems import InvalidFleet
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.sections import AUDIENCES, GATEWAY, POLICY, ROUTER
from headrace_controlplane.store import SCHEMA, Store, StoreError
from headrace_controlplane.vault import Vault, ensure_admin_key
from headrace_kit.errors import InvalidRequest, Unavailable
from tests.meters import reading
from tests.unit.controlplane.fakes import SCRIPTED, scripted

CARD = b"c" * 32


def key_of(tenant: str = "dev") -> StoredKey:
    return StoredKey(key_id="", hash=b"", tenant=tenant)


def policy(ledger: Ledger) -> snapshot_pb2.PolicySection:
    assert ledger.current is not None
    return snapshot_pb2.PolicySection.FromString(ledger.current.sections[POLICY])


def gateway(ledger: Ledger) -> snapshot_pb2.GatewaySection:
    assert ledger.current is not None
    return snapshot_pb2.GatewaySection.FromString(ledger.current.sections[GATEWAY])


def test_each_change_is_the_next_version(ledger: Ledger) -> None:
    assert ledger.apply(SCRIPTED, "first")
    assert ledger.apply(scripted(min=2), "second")
    assert [(row.version, row.comment) for row in ledger.history(10)] == [(2, "second"), (1, "first")]
    assert reading("fleet_version") == 2


def test_the_same_content_is_no_change(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    assert not ledger.apply(scripted(min=1) + "# said otherwise\n", "")
    assert ledger.version == 1


def test_a_bad_file_changes_nothing(ledger: Ledger) -> None:
    """B49, B161: the last good version stays in force."""
    ledger.apply(SCRIPTED, "")
    before = ledger.current
    with pytest.raises(InvalidFleet):
        ledger.apply(scripted(page_tokens=24), "")
    assert ledger.current is before
    assert len(ledger.history(10)) == 1


def test_two_operators_do_not_overwrite_each_other(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    ledger.apply(scripted(min=2), "", expected_version=1)
    with pytest.raises(InvalidRequest, match="newest version is 2"):
        ledger.apply(scripted(min=3), "", expected_version=1)


def test_rollback_is_a_new_version_with_the_old_file(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    ledger.apply(scripted(min=2), "")
    assert ledger.rollback(1)
    assert ledger.version == 3
    assert ledger.file_of(0) == (3, SCRIPTED)
    with pytest.raises(InvalidRequest):
        ledger.rollback(17)


def test_neither_apply_nor_rollback_touches_keys(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    key, _ = ledger.create_key(key_of())
    ledger.apply(scripted(min=2), "")
    ledger.rollback(1)
    assert [each.key_id for each in policy(ledger).keys] == [key.key_id]


def test_keys_of_a_tenant_that_left_come_back_with_it(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED + "tenants: {a: {}, b: {}}", "")
    ledger.create_key(key_of("a"))
    ledger.apply(SCRIPTED + "tenants: {b: {}}", "")
    assert not policy(ledger).keys
    ledger.rollback(1)
    assert len(policy(ledger).keys) == 1


def test_only_policy_gets_key_hashes_and_nobody_gets_keys(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    key, whole = ledger.create_key(key_of())
    assert ledger.current is not None
    for audience in AUDIENCES:
        content = ledger.current.sections[audience]
        assert (key.hash in content) == (audience == POLICY)
        assert (ledger.vault.key_secret in content) == (audience == POLICY)
        assert (ledger.vault.salt_secret in content) == (audience == GATEWAY)
        assert whole.encode() not in content
    assert policy(ledger).keys[0].hash == ledger.vault.key_hash(whole)


def test_a_project_is_one_line_of_text(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    for project in ("a\nb", "a\x1b[31mb", "a\x00b"):
        with pytest.raises(InvalidRequest) as refusal:
            ledger.create_key(dataclasses.replace(key_of(), project=project))
        assert refusal.value.field == "project"
    ledger.create_key(dataclasses.replace(key_of(), project="Projekt Süd"))


def test_a_key_names_itself_and_is_known_until_it_is_revoked(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    key, whole = ledger.create_key(key_of())
    assert whole.startswith(f"hr_{key.key_id}_")
    assert ledger.holds_key(whole)
    assert not ledger.holds_key(whole[:-1] + "!")
    version = ledger.version
    ledger.revoke_key(key.key_id)
    ledger.revoke_key(key.key_id)
    assert ledger.version == version + 1
    assert not ledger.holds_key(whole)
    assert not policy(ledger).keys
    assert [each.revoked for each in ledger.list_keys()] == [True]


def test_a_key_needs_a_tenant_and_a_revocation_a_key(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    with pytest.raises(InvalidRequest, match="no tenant"):
        ledger.create_key(key_of("nobody"))
    with pytest.raises(InvalidRequest, match="no key"):
        ledger.revoke_key("nothing")


def test_a_card_that_becomes_known_is_a_new_version(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    assert gateway(ledger).models[0].card_digest == b""
    ledger.set_card("scripted", "1", CARD)
    assert (ledger.version, gateway(ledger).models[0].card_digest) == (2, CARD)
    ledger.set_card("scripted", "another revision", b"d" * 32)
    assert ledger.version == 2


def test_a_restart_has_the_same_version_and_the_same_bytes(ledger: Ledger, store: Store) -> None:
    ledger.apply(SCRIPTED, "")
    ledger.create_key(key_of())
    again = Ledger(store, ledger.vault)
    assert again.current is not None
    assert ledger.current is not None
    assert (again.current.row, again.current.sections) == (ledger.current.row, ledger.current.sections)


def test_other_bytes_of_another_release_are_another_version(ledger: Ledger, store: Store) -> None:
    ledger.apply(SCRIPTED, "")
    store._db.execute("UPDATE sections SET content = x'00' WHERE audience = 'router'")
    again = Ledger(store, ledger.vault)
    assert again.version == 2
    assert again.history(1)[0].kind == "recover"


def test_versions_go_on_above_what_a_subscriber_runs(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    ledger.stay_ahead_of(1)
    assert ledger.version == 1
    ledger.stay_ahead_of(40)
    assert ledger.version == 41


def test_router_and_gateway_read_what_the_file_says(ledger: Ledger) -> None:
    text = scripted(hold_s=2.5, max_held=7, max=3, max_sequence_tokens=100, classes="[fast]")
    ledger.apply(text + "classes: {fast: {ttft_ms: 700, inter_token_ms: 50, default: true}}", "")
    assert ledger.current is not None
    router = snapshot_pb2.RouterSection.FromString(ledger.current.sections[ROUTER])
    (pool,) = router.pools
    assert (pool.hold_ms, pool.max_held, pool.min_replicas, pool.max_replicas) == (2500, 7, 1, 3)
    assert (list(pool.classes), pool.max_sequence_tokens, pool.revision) == (["fast"], 100, "1")
    assert [(c.name, c.ttft_ms, c.inter_token_ms) for c in router.classes] == [("fast", 700, 50)]
    assert gateway(ledger).models[0].max_sequence_tokens == 100
    assert policy(ledger).default_slo_class == "fast"


def test_a_store_of_a_later_release_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store._db.execute(f"PRAGMA user_version = {len(SCHEMA) + 1}")
    store.close()
    with pytest.raises(StoreError, match="schema"):
        Store(tmp_path / "db")


def test_a_file_that_is_no_store_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("this is no database, but it is long enough to be looked at" * 30)
    with pytest.raises(StoreError, match="cannot use"):
        Store(tmp_path / "db")


def test_a_full_disk_is_said_and_keeps_nothing_open(ledger: Ledger, store: Store) -> None:
    ledger.apply(SCRIPTED, "")
    (num_pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {num_pages}")
    with pytest.raises(Unavailable, match="disk of the control plane is full") as caught:
        for _ in range(1000):
            ledger.create_key(key_of())
    version, num_keys = ledger.version, len(ledger.list_keys())
    assert caught.value.reason == "storage_full" and caught.value.retry_after_s is not None
    store._db.execute(f"PRAGMA max_page_count = {10 * num_pages}")
    ledger.create_key(key_of())
    assert (ledger.version, len(ledger.list_keys())) == (version + 1, num_keys + 1)
    assert not store._db.in_transaction


def test_what_fails_within_a_transaction_leaves_nothing(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.set_fact("a", "1")
        raise ZeroDivisionError
    assert store.fact("a") is None


def test_secrets_are_drawn_once_and_private(tmp_path: Path) -> None:
    first = Vault.open(tmp_path / "s")
    assert Vault.open(tmp_path / "s") == first
    assert first.salt_secret != first.key_secret
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()} == {0o600}
    (tmp_path / "s" / "salt_secret").write_bytes(b"short")
    with pytest.raises(ValueError, match="secret of 32 bytes"):
        Vault.open(tmp_path / "s")


def test_the_admin_key_is_made_once_and_may_then_leave_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "admin"
    made = ensure_admin_key(path, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ensure_admin_key(path, made) == made
    path.unlink()
    assert ensure_admin_key(path, made) == made
    assert not path.exists()
    path.write_text("an operator's own key\n")
    assert ensure_admin_key(path, made) != made
    path.write_text("short")
    with pytest.raises(ValueError, match="16 characters"):
        ensure_admin_key(path, made)


class LedgerMachine(RuleBasedStateMachine):
    """Files, keys, cards, bad files and restarts in any order, against a list of what was applied."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        self.vault = Vault.open(self.root / "secrets")
        self.store = Store(self.root / "db")
        self.ledger = Ledger(self.store, self.vault)
        self.files: dict[int, str] = {}
        self.live: set[str] = set()
        self.last_version = 0
        self._apply(SCRIPTED)

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    def _apply(self, text: str) -> None:
        self.ledger.apply(text, "")
        self._note(text)

    def _note(self, text: str | None = None) -> None:
        assert self.ledger.version >= self.last_version, "versions rise"
        if self.ledger.version > self.last_version:
            self.last_version = self.ledger.version
            self.files[self.last_version] = text if text is not None else self.files[max(self.files)]

    @rule(replicas=st.integers(0, 3))
    def apply(self, replicas: int) -> None:
        self._apply(scripted(min=replicas))

    @rule(bad=st.sampled_from([scripted(min=-1), "models: [", "", scripted(page_tokens=24)]))
    def apply_bad(self, bad: str) -> None:
        version = self.ledger.version
        with pytest.raises(InvalidFleet):
            self.ledger.apply(bad, "")
        assert self.ledger.version == version

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.files)))
        self.ledger.rollback(version)
        self._note(self.files[version])

    @rule()
    def create_key(self) -> None:
        key, _ = self.ledger.create_key(key_of())
        self.live.add(key.key_id)
        self._note()

    @rule(data=st.data())
    def revoke_key(self, data: st.DataObject) -> None:
        if self.live:
            key_id = data.draw(st.sampled_from(sorted(self.live)))
            self.ledger.revoke_key(key_id)
            self.live.remove(key_id)
            self._note()

    @rule(digest=st.sampled_from([b"a" * 32, b"b" * 32]))
    def set_card(self, digest: bytes) -> None:
        self.ledger.set_card("scripted", "1", digest)
        self._note()

    @rule()
    def restart(self) -> None:
        before = self.ledger.current
        self.store.close()
        self.store = Store(self.root / "db")
        self.ledger = Ledger(self.store, self.vault)
        assert self.ledger.current is not None
        assert before is not None
        assert (self.ledger.current.row, self.ledger.current.sections) == (before.row, before.sections)

    @invariant()
    def keys_are_those_that_live(self) -> None:
        assert {key.key_id for key in policy(self.ledger).keys} == self.live

    @invariant()
    def every_version_keeps_its_file(self) -> None:
        assert {row.version for row in self.ledger.history(1000)} == set(self.files)
        assert self.ledger.file_of(0) == (max(self.files), self.files[max(self.files)])


TestLedgerMachine = LedgerMachine.TestCase
# Every step commits to a real file, which costs milliseconds.
TestLedgerMachine.settings = settings(max_examples=12, stateful_step_count=20)


def test_whoever_may_name_a_model_may_name_it_by_its_aliases(ledger: Ledger) -> None:
    """A request names a model in its own words, and the list of models shows aliases too."""
    fleet = SCRIPTED.replace("{source: scripted}", "{source: scripted, aliases: [al]}")
    ledger.apply(fleet + "tenants: {dev: {models: [scripted]}, free: {}}\n", "")
    ledger.create_key(StoredKey(key_id="", hash=b"", tenant="dev", models=("scripted",)))
    section = policy(ledger)
    assert {tenant.id: list(tenant.models) for tenant in section.tenants} == {"dev": ["scripted", "al"], "free": []}
    assert [list(key.models) for key in section.keys] == [["scripted", "al"]]


def test_a_key_of_a_removed_model_does_not_become_a_key_of_all(ledger: Ledger) -> None:
    ledger.apply(SCRIPTED, "")
    ledger.create_key(StoredKey(key_id="", hash=b"", tenant="dev", models=("scripted",)))
    ledger.apply(
        SCRIPTED.replace("  scripted: {source", "  other: {source").replace("model: scripted", "model: other"), ""
    )
    assert [list(key.models) for key in policy(ledger).keys] == [["scripted"]]
