"""Recorded traces as arrivals: Azure 2023, BurstGPT, Mooncake and Qwen-Bailian, plain or gzipped; the format is
recognised by its first line. Knows no rate but the recorded one: `thin` and `repeat` say by how much they change it.

Traces that name the blocks of a prompt (`hash_ids`) give one segment per block, so that shared prefixes stay shared;
in the others every prompt is its own. What was declared as output limit is not recorded: it is taken as the actual
output, unless `max_output` says otherwise.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from headrace_workload.arrival import Arrival, Segment
from headrace_workload.errors import WorkloadError
from headrace_workload.lengths import MOST_TOKENS

MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16
# No trace is silent for so long at its beginning: its clock counts from elsewhere.
_MOST_SILENCE_S = 30 * 86_400.0
# Seeds of prompts that share nothing lie above those of blocks.
_OWN = 1 << 40


@dataclass(frozen=True)
class TraceOptions:
    """What a trace does not say. `start_s` to `end_s` of it are read, and its time then starts at 0."""

    model: str = ""
    slo_class: str = ""
    tenant: str = ""
    max_output: int = 0
    start_s: float = 0.0
    end_s: float = float("inf")


@dataclass(frozen=True)
class _Row:
    at_s: float
    num_prompt: int
    num_output: int
    hash_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    session: str = ""
    turn: int = 0


def read_trace(path: Path, options: TraceOptions = TraceOptions()) -> Iterator[Arrival]:
    """The arrivals of a trace file in order of time; rows without prompt or output (failures) are left out.

    WorkloadError for a file that cannot be read, a row that makes no sense, or one that is earlier than the one before.
    """
    number = 0
    for row in _checked(_rows(path), options.start_s):
        if row.num_prompt < 1 or row.num_output < 1 or row.at_s < options.start_s:
            continue
        if row.at_s >= options.end_s:
            return
        yield _arrival(row, number, options)
        number += 1


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with _open(path) as lines:
            first = next(lines, "")
            yield from _reader(path, first)(_chain(first, lines))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        raise WorkloadError(str(path), f"cannot be read: {error}") from None


def _checked(rows: Iterator[_Row], start_s: float) -> Iterator[_Row]:
    last_s: float | None = None
    for row in rows:
        if max(row.num_prompt, row.num_output) > MOST_TOKENS:
            raise WorkloadError(f"the row at {row.at_s:g} s", f"has more than {MOST_TOKENS:,} tokens")
        if not 0 <= row.at_s < float("inf"):
            raise WorkloadError(f"the row at {row.at_s:g} s", "expected a time from 0 up, the first row's or later")
        if last_s is not None and row.at_s < last_s:
            words = f"comes after one at {last_s:g} s: sort the trace by time"
            raise WorkloadError(f"the row at {row.at_s:g} s", words)
        if last_s is None and row.at_s > start_s + _MOST_SILENCE_S:
            words = "is the first one: leave out what is before (simulate: --start-s, bench: --from)"
            raise WorkloadError(f"the row at {row.at_s:.17g} s", words)
        last_s = row.at_s
        yield row


def thin(arrivals: Iterable[Arrival], share: float, seed: int) -> Iterator[Arrival]:
    """Keep each arrival with this probability: the same pattern at a lower rate."""
    rng, number = Random(seed), 0
    for arrival in arrivals:
        if rng.random() < share:
            yield arrival._replace(number=number)
            number += 1


def _open(path: Path) -> Any:
    # Spreadsheets begin a file with a byte order mark.
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _reader(path: Path, first: str) -> Callable[[Iterator[str]], Iterator[_Row]]:
    if first.startswith("{"):
        return _json_rows
    readers = {
        "TIMESTAMP,ContextTokens": _azure_rows,
        "Timestamp,Model,": _burstgpt_rows,
        "timestamp_ms,input_length": _compact_rows,
    }
    for header, reader in readers.items():
        if first.startswith(header):
            return reader
    raise WorkloadError(str(path), "is no trace that is known: Azure, BurstGPT, Mooncake or Bailian")


def _arrival(row: _Row, number: int, options: TraceOptions) -> Arrival:
    return Arrival(
        number=number,
        at_s=row.at_s - options.start_s,
        model=options.model,
        num_prompt=row.num_prompt,
        max_output=max(row.num_output, options.max_output),
        num_output=row.num_output,
        segments=_segments(row, number),
        tenant=options.tenant,
        slo_class=options.slo_class,
        session=row.session,
        turn=row.turn,
    )


def _segments(row: _Row, number: int) -> tuple[Segment, ...]:
    """One per named block, the last one cut to length; what no block names is the prompt's own."""
    segments, left = [], row.num_prompt
    for block in row.hash_ids:
        if left <= 0:
            break
        segments.append(Segment(block, min(left, row.block_tokens)))
        left -= row.block_tokens
    if left > 0:
        segments.append(Segment(_OWN + number, left))
    return tuple(segments)


def _json_rows(lines: Iterator[str]) -> Iterator[_Row]:
    """Mooncake (milliseconds, blocks of 512) and Bailian (seconds, blocks of 16, chats)."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            is_bailian = "chat_id" in row
            yield _Row(
                at_s=float(row["timestamp"]) / (1 if is_bailian else 1000),
                num_prompt=int(row["input_length"]),
                num_output=int(row["output_length"]),
                hash_ids=tuple(int(each) for each in row.get("hash_ids") or ()),
                block_tokens=BAILIAN_BLOCK_TOKENS if is_bailian else MOONCAKE_BLOCK_TOKENS,
                session=str(row.get("chat_id", "")) if row.get("parent_chat_id", -1) in (-1, None) else _parent(row),
                turn=max(0, int(row.get("turn", 1)) - 1),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WorkloadError(f"line {number}", f"is no row of a trace: {error!r}") from None


def _parent(row: dict[str, Any]) -> str:
    return str(row["parent_chat_id"])


def _azure_rows(lines: Iterator[str]) -> Iterator[_Row]:
    start: datetime | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            # Seven fractional digits; datetime reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or at
            yield _Row((at - start).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WorkloadError(f"line {number}", f"is no row of a trace: {error!r}") from None


def _burstgpt_rows(lines: Iterator[str]) -> Iterator[_Row]:
    start_s: float | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at_s = float(row["Timestamp"])
            start_s = at_s if start_s is None else start_s
            yield _Row(at_s - start_s, int(row["Request tokens"]), int(row["Response tokens"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WorkloadError(f"line {number}", f"is no row of a trace: {error!r}") from None


def _compact_rows(lines: Iterator[str]) -> Iterator[_Row]:
    """Mooncake with runs of blocks written as `first-last` (benchmarks/data/mooncake)."""
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            runs = [run.split("-") for run in row["hash_ids"].split()]
            blocks = tuple(block for run in runs for block in range(int(run[0]), int(run[-1]) + 1))
            lengths = int(row["input_length"]), int(row["output_length"])
            yield _Row(float(row["timestamp_ms"]) / 1000, *lengths, blocks, MOONCAKE_BLOCK_TOKENS)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WorkloadError(f"line {number}", f"is no row of a trace: {error!r}") from None
