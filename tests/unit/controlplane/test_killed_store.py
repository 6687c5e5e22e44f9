"""kill -9 in the middle of anything: what was answered is there, and what is there is whole."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.v1 import snapshot_pb2
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.store import Store
from headrace_controlplane.vault import Vault

# Applies and makes keys as fast as it can, and says so only after each is done.
WRITER = """
import sys
from pathlib import Path
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.store import Store
from headrace_controlplane.vault import Vault

root, text = Path(sys.argv[1]), sys.argv[2]
ledger = Ledger(Store(root / "db"), Vault.open(root / "secrets"))
for i in range(100_000):
    ledger.apply(text.replace("min: 0", f"min: {i % 900}"), "")
    key, _ = ledger.create_key(StoredKey(key_id="", hash=b"", tenant="dev"))
    print(ledger.version, key.key_id, flush=True)
"""
TEXT = "models: {m: {source: scripted}}\npools: {p: {model: m, engine: scripted, min: 0}}\n"


@pytest.mark.parametrize("life_s", [0.0, 0.01, 0.03])
def test_nothing_that_was_answered_is_lost(tmp_path: Path, life_s: float) -> None:
    answered: list[tuple[int, str]] = []
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), TEXT], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        kill_at = time.monotonic() + life_s
        while time.monotonic() < kill_at:
            lines.append(writer.stdout.readline())
        writer.kill()
        lines += writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        answered += [(int(line.split()[0]), line.split()[1]) for line in lines if line.strip()]
    store = Store(tmp_path / "db")
    ledger = Ledger(store, Vault.open(tmp_path / "secrets"))
    assert ledger.version >= max(version for version, _ in answered)
    assert [row.version for row in ledger.history(10**6)] == list(range(ledger.version, 0, -1))
    assert {key_id for _, key_id in answered} <= {key.key_id for key in ledger.list_keys()}
    assert ledger.current is not None
    section = snapshot_pb2.PolicySection.FromString(ledger.current.sections["policy"])
    assert {key.key_id for key in section.keys} == {key.key_id for key in ledger.list_keys()}
    ledger.create_key(StoredKey(key_id="", hash=b"", tenant="dev"))
    store.close()
