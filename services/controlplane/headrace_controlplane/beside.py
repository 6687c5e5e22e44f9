"""What belongs to a snapshot and is in no fleet file. Knows no section."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace_controlplane.keys import StoredKey
from headrace_controlplane.store import TrialRow
from headrace_controlplane.vault import Vault


@dataclass(frozen=True)
class Beside:
    vault: Vault
    keys: Sequence[StoredKey] = ()
    cards: Mapping[tuple[str, str], bytes] = field(default_factory=dict)
    """Digest by (model, revision)."""
    models_added: Mapping[str, int] = field(default_factory=dict)
    """Unix seconds by model."""
    served: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    """(revision, card digest) by model, as the version before had it."""
    serving: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Replicas that are ready by (model, revision)."""
    trials: Mapping[tuple[str, str], TrialRow] = field(default_factory=dict)
    """By (model, revision)."""
    speech: Callable[[bytes], bytes] = bytes
    """By card digest; equal for cards that make the same tokens, empty if the card is not there."""
