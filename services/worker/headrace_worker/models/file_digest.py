"""SHA-256 of files, and the one that names a model."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sha256_of_file(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(weights: Mapping[str, str], config: Mapping[str, Any], revision: str) -> str:
    """Hex SHA-256 over the weights' digests, the configuration and the revision: what makes KV interchangeable."""
    facts = {"weights": dict(weights), "config": dict(config), "revision": revision}
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
