"""What launcher and keeper of Ray replicas tell one another, by files: what is wanted, and what there is.

``ID.want`` (launcher: this start of the replica), ``ID.stop`` (launcher: it is to leave), ``ID.found`` (keeper: how
that start stands), ``keeper.word`` (keeper: why it cannot do anything). Whole files only, so each may die at any time.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace_kit.files import write_atomically

WANT, STOP, FOUND, WORD = ".want", ".stop", ".found", "keeper.word"


@dataclass(frozen=True)
class Wanted:
    """One start of one replica: `start` names it, and no other start ever has that name."""

    replica_id: str
    start: str
    command: Sequence[str]
    files: Mapping[str, str]
    root: str
    num_cpus: int
    num_gpus: int
    drain_s: float

    @property
    def actor(self) -> str:
        """Name of its actor and of its placement group."""
        return f"{self.replica_id}.{self.start}"


@dataclass(frozen=True)
class Found:
    """How a start stands: `is_made` once it was asked of Ray; ended when it was made and is not alive."""

    start: str
    is_made: bool = False
    alive: bool = True
    pid: int = 0
    node: str = ""
    words: str = ""


class RayFiles:
    """All of them in one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def wanted(self) -> dict[str, Wanted]:
        """By replica id."""
        read = [_read(path) for path in sorted(self._root.glob(f"*{WANT}"))]
        return {raw["wanted"]["replica_id"]: Wanted(**raw["wanted"]) for raw in read if raw is not None}

    def specs(self) -> dict[str, dict[str, Any]]:
        """What the launcher keeps for itself beside each wanted start, by replica id."""
        read = [_read(path) for path in sorted(self._root.glob(f"*{WANT}"))]
        return {raw["wanted"]["replica_id"]: raw for raw in read if raw is not None}

    def want(self, wanted: Wanted, spec: Mapping[str, Any]) -> None:
        self.path(wanted.replica_id, STOP).unlink(missing_ok=True)
        _write(self.path(wanted.replica_id, WANT), {"wanted": asdict(wanted), "spec": spec})

    def stop(self, replica_id: str, since: float) -> None:
        if self.stopping_since(replica_id) is None:
            _write(self.path(replica_id, STOP), {"since": since})

    def stopping_since(self, replica_id: str) -> float | None:
        raw = _read(self.path(replica_id, STOP))
        return None if raw is None else float(raw["since"])

    def found(self, replica_id: str) -> Found | None:
        raw = _read(self.path(replica_id, FOUND))
        return None if raw is None else Found(**raw)

    def tell(self, replica_id: str, found: Found) -> None:
        if self.found(replica_id) != found:
            _write(self.path(replica_id, FOUND), asdict(found))

    def forget(self, replica_id: str) -> None:
        for suffix in (WANT, STOP, FOUND):
            self.path(replica_id, suffix).unlink(missing_ok=True)

    @property
    def word(self) -> str:
        """Why the keeper cannot do anything; empty: it can."""
        raw = _read(self._root / WORD)
        return "" if raw is None else str(raw["word"])

    @word.setter
    def word(self, text: str) -> None:
        if self.word != text:
            _write(self._root / WORD, {"word": text})

    def path(self, replica_id: str, suffix: str) -> Path:
        return self._root / f"{replica_id}{suffix}"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content).encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) else None
