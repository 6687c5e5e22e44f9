"""Artifacts by the SHA-256 of their content, one file each. Knows not what they mean."""

import hashlib
import os
import secrets
from pathlib import Path

MAX_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
_DIGEST_BYTES = hashlib.sha256().digest_size


class BadArtifact(ValueError):
    """What was sent cannot be stored; the text says why."""


class Artifacts:
    """A directory of files named by digest; a half-written one is never seen under its name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left_over in directory.glob("*.part"):
            left_over.unlink()

    def has(self, digest: bytes) -> bool:
        return len(digest) == _DIGEST_BYTES and self._path(digest).exists()

    def read(self, digest: bytes) -> bytes | None:
        """The whole content, at most MAX_BYTES; None if unknown."""
        return self._path(digest).read_bytes() if self.has(digest) else None

    def receive(self, digest: bytes, total_bytes: int) -> "Writer":
        """A writer for the content of ``digest``; raises BadArtifact."""
        if len(digest) != _DIGEST_BYTES:
            raise BadArtifact("digest: expected 32 bytes of SHA-256 in the first chunk")
        if not 0 < total_bytes <= MAX_BYTES:
            raise BadArtifact(f"total_bytes: expected 1 to {MAX_BYTES} in the first chunk, got {total_bytes}")
        return Writer(self._path(digest), digest, total_bytes)

    def _path(self, digest: bytes) -> Path:
        return self._directory / digest.hex()


class Writer:
    """Takes chunks; ``commit`` gives the file its name if size and digest are right. ``close`` always."""

    def __init__(self, path: Path, digest: bytes, total_bytes: int) -> None:
        self._path, self._digest, self._total_bytes = path, digest, total_bytes
        self._part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        self._file = self._part.open("wb")
        self._hash, self._num_bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes > self._total_bytes:
            raise BadArtifact(f"data: more than the {self._total_bytes} bytes that the first chunk announced")
        self._hash.update(data)
        self._file.write(data)

    def commit(self) -> None:
        if self._num_bytes != self._total_bytes:
            raise BadArtifact(f"data: {self._num_bytes} of the {self._total_bytes} announced bytes arrived")
        if self._hash.digest() != self._digest:
            raise BadArtifact("digest: the content has another SHA-256")
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._part, self._path)

    def close(self) -> None:
        try:
            self._file.close()
        finally:  # a full disk does not take what is in the buffer still
            self._part.unlink(missing_ok=True)
