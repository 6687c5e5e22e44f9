"""What a control plane needs before its first answer: a fleet in force, an admin key, perhaps a key to try with."""

import logging
from pathlib import Path

from headrace_controlplane import vault
from headrace_controlplane.admin_gate import AdminGate
from headrace_controlplane.fleet.file import default_text
from headrace_controlplane.fleet.problems import InvalidFleet
from headrace_controlplane.keys import StoredKey
from headrace_controlplane.ledger import Ledger
from headrace_controlplane.store import Store
from headrace_kit.files import write_atomically

log = logging.getLogger(__name__)
_ADMIN_HASH = "admin_key_hash"
_PREFERRED_TENANT = "dev"


class BootstrapError(Exception):
    """The control plane cannot start; one sentence for its operator."""


def first_fleet(ledger: Ledger, path: Path | None) -> None:
    """Applies the fleet file of a newcomer, or ``path``, if nothing was applied yet."""
    if ledger.current is not None:
        return
    try:
        text = default_text() if path is None else path.read_text("utf-8")
        ledger.apply(text, f"first start with {path or 'the default fleet'}")
    except (OSError, UnicodeDecodeError) as error:
        raise BootstrapError(f"cannot read the fleet file {path}: {error}") from error
    except InvalidFleet as error:
        lines = "\n".join(f"  {problem}" for problem in error.problems)
        raise BootstrapError(f"the fleet file {path} is not valid:\n{lines}") from error


def open_gate(store: Store, path: Path) -> AdminGate:
    """The admin key is in ``path``, or was once; a key that is in neither place is made now."""
    try:
        key_hash = vault.ensure_admin_key(path, store.fact(_ADMIN_HASH))
    except (OSError, ValueError) as error:
        raise BootstrapError(f"cannot use the admin key file {path}: {error}") from error
    if key_hash != store.fact(_ADMIN_HASH):
        log.info("admin_key_changed", extra={"path": path})
        store.set_fact(_ADMIN_HASH, key_hash)
    return AdminGate(key_hash)


def ensure_key(ledger: Ledger, path: Path | None) -> None:
    """A file of mode 0600 with an API key that works; one that is there and works is kept."""
    if path is None or ledger.current is None:
        return
    if path.exists() and ledger.holds_key(path.read_text("utf-8").strip()):
        return
    tenants = ledger.current.fleet.tenants
    tenant = _PREFERRED_TENANT if _PREFERRED_TENANT in tenants else next(iter(tenants), None)
    if tenant is None:
        raise BootstrapError("the fleet file names no tenant, so no API key can be made")
    _, whole = ledger.create_key(StoredKey(key_id="", hash=b"", tenant=tenant))
    write_atomically(path, f"{whole}\n".encode(), mode=0o600)
    log.info("api_key_made", extra={"path": path, "tenant": tenant})
