"""The usage journal as text: one JSON object a line, one file a day (UTC), only ever appended to.

For those who ship usage with what they ship logs with. ``settlement`` is a SettleRequest in base64. The same row may
stand there twice when a process was killed between writing and telling Redis; reading takes it once, and so must
others, by ``tenant`` and ``row_id``.
"""

import base64
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from headrace_policy.journal import JournalError, Row

_DAY_MS = 86_400_000
_BLOCK = 65_536
Place = tuple[int, str, str, int]
"""When, whose, which, and the line's first byte."""


class FileJournal:
    """``folder`` is made. A line that a crash or a full disk cut short is taken back before the next is written."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, rows: Sequence[Row]) -> None:
        with self._lock:
            try:
                for day, group in groupby(sorted(rows, key=_order), key=lambda row: row.settled_at_ms // _DAY_MS):
                    _append(self._path(day), b"".join(map(_line, group)))
            except OSError as error:
                raise JournalError(str(error)) from error

    def between(self, tenant: str, from_ms: int, to_ms: int) -> Iterator[Row]:
        for day in self._days():
            if from_ms // _DAY_MS <= day < (to_ms + _DAY_MS - 1) // _DAY_MS:
                yield from self._of_day(day, tenant, from_ms, to_ms)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _of_day(self, day: int, tenant: str, from_ms: int, to_ms: int) -> Iterator[Row]:
        try:
            with self._lock, self._path(day).open("rb") as file:
                places = sorted(_places(file))
            last = None
            with self._path(day).open("rb") as file:
                for at_ms, owner, row_id, first in places:
                    if (owner, row_id) == last or tenant not in ("", owner) or not from_ms <= at_ms < to_ms:
                        continue
                    last = (owner, row_id)
                    file.seek(first)
                    yield _row(file.readline())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{self._path(day)}: {error}") from error

    def _days(self) -> list[int]:
        found = (
            datetime.fromisoformat(path.stem).replace(tzinfo=UTC) for path in self._folder.glob("????-??-??.jsonl")
        )
        return sorted(int(day.timestamp() * 1000) // _DAY_MS for day in found)

    def _path(self, day: int) -> Path:
        return self._folder / f"{datetime.fromtimestamp(day * _DAY_MS / 1000, UTC):%Y-%m-%d}.jsonl"


def _append(path: Path, lines: bytes) -> None:
    """Durable, or as if it had not been."""
    new = not path.exists()
    with path.open("ab+") as file:
        end = _whole(file)
        file.truncate(end)
        try:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise
    if new:
        _sync_folder(path.parent)


def _whole(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        first = max(0, end - _BLOCK)
        file.seek(first)
        found = file.read(end - first).rfind(b"\n")
        if found >= 0:
            return first + found + 1
        end = first
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _places(file: BinaryIO) -> Iterator[Place]:
    first = 0
    for line in file:
        if not line.endswith(b"\n"):
            return
        row = _row(line)
        yield row.settled_at_ms, row.tenant, row.row_id, first
        first += len(line)


def _order(row: Row) -> tuple[int, str, str]:
    return row.settled_at_ms, row.tenant, row.row_id


def _line(row: Row) -> bytes:
    content = {**asdict(row), "settlement": base64.b64encode(row.settlement).decode()}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _row(line: bytes) -> Row:
    content = json.loads(line)
    return Row(**{**content, "settlement": base64.b64decode(content["settlement"])})
