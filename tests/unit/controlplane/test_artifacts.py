"""Artifacts are what their name says, or they are not there."""

import hashlib
import os
from pathlib import Path

import pytest

from headrace_controlplane.artifacts import MAX_BYTES, Artifacts, BadArtifact

CONTENT = b"model card" * 1000
DIGEST = hashlib.sha256(CONTENT).digest()


def put(artifacts: Artifacts, *chunks: bytes, digest: bytes = DIGEST, total: int = len(CONTENT)) -> None:
    writer = artifacts.receive(digest, total)
    try:
        for chunk in chunks:
            writer.write(chunk)
        writer.commit()
    finally:
        writer.close()


def test_what_was_put_can_be_read(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    put(artifacts, CONTENT[:100], CONTENT[100:])
    assert artifacts.read(DIGEST) == CONTENT
    for unknown in (b"x" * 32, b"", b"x" * 1000):
        assert artifacts.read(unknown) is None and not artifacts.has(unknown)


@pytest.mark.parametrize(
    ("chunks", "digest", "total", "message"),
    [
        ((CONTENT,), b"short", len(CONTENT), "digest"),
        ((CONTENT,), b"x" * 32, len(CONTENT), "another SHA-256"),
        ((CONTENT[:-1],), DIGEST, len(CONTENT), "9999 of the 10000"),
        ((CONTENT, b"!"), DIGEST, len(CONTENT), "more than"),
        ((), DIGEST, 0, "total_bytes"),
        ((), DIGEST, MAX_BYTES + 1, "total_bytes"),
    ],
)
def test_what_is_not_right_is_not_stored(
    tmp_path: Path, chunks: tuple[bytes, ...], digest: bytes, total: int, message: str
) -> None:
    artifacts = Artifacts(tmp_path)
    with pytest.raises(BadArtifact, match=message):
        put(artifacts, *chunks, digest=digest, total=total)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    writer = Artifacts(tmp_path).receive(DIGEST, len(CONTENT))
    writer.write(CONTENT[:10])
    assert len(list(tmp_path.iterdir())) == 1
    Artifacts(tmp_path)
    assert list(tmp_path.iterdir()) == []
    writer.close()


def test_a_full_disk_is_left_no_fuller(tmp_path: Path) -> None:
    """What was written stays in the buffer, and closing the file tries once more."""
    writer = Artifacts(tmp_path).receive(DIGEST, len(CONTENT))
    writer.write(CONTENT[:10])
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file.fileno())
    os.close(full)
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    assert list(tmp_path.iterdir()) == []
