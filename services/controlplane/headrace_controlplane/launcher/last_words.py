"""The log of a replica's process: opened for appending, and read for what it said last."""

import os
from pathlib import Path
from typing import Any

_MAX_LOG_BYTES = 16 * 1024 * 1024


def opened_log(path: Path) -> Any:
    """Appends; the log of the time before moves aside when it is long."""
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def last_words(path: Path, exit_code: int | None) -> str:
    """How a process ended: its exit code, if it was our child, and the last line that it wrote."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    ended = f"ended with exit code {exit_code}" if exit_code is not None else "ended"
    return f"{ended}: {lines[-1][:300]}" if lines else ended
