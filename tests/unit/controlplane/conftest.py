"""A ledger over a real store in a directory of the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_controlplane.ledger import Ledger
from headrace_controlplane.store import Store
from headrace_controlplane.vault import Vault


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "controlplane.db")
    yield opened
    opened.close()


@pytest.fixture
def ledger(store: Store, tmp_path: Path) -> Ledger:
    return Ledger(store, Vault.open(tmp_path / "secrets"), wall=lambda: 1_000_000.0)
