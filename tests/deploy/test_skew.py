"""Services of neighbouring versions work together: each of the last release among those of this tree, and all of it.

HEADRACE_SKEW_REF names another commit than the last tag.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT, SERVICES
from tests.deploy.tls_platform import tls_platform

pytestmark = pytest.mark.slow

SCRIPT = [{"role": "user", "content": '["Hel", "lo"]'}]


def last_release() -> str:
    """The newest tag before this commit, empty if there is none."""
    describe = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("HEADRACE_SKEW_REF") or done.stdout.strip()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each service a folder with its packages, the kit and the contract of the last release."""
    if not (ref := last_release()):
        pytest.skip("nothing is released yet: there is no tag to run beside this tree")
    folder = tmp_path_factory.mktemp("released")
    subprocess.run(["git", "archive", "-o", folder / "tree.tar", ref, "protos", "services"], cwd=ROOT, check=True)
    with tarfile.open(folder / "tree.tar") as packed:
        packed.extractall(folder / "tree", filter="data")
    pip = [sys.executable, "-m", "pip"]
    offline = ["-q", "--no-index", "--no-deps"]
    sources = [folder / "tree" / name for name in ("protos", *(f"services/{name}" for name in ("kit", *SERVICES)))]
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", folder / "wheels", *sources], check=True)
    for service in SERVICES:
        wheels = [next((folder / "wheels").glob(f"headrace_{name}-*.whl")) for name in ("protos", "kit", service)]
        subprocess.run([*pip, "install", *offline, "--target", folder / service, *wheels], check=True)
    return {service: folder / service for service in SERVICES}


def answer(folder: Path, elsewhere: dict[str, Path]) -> str:
    with tls_platform(folder, elsewhere) as platform, platform.client() as client:
        return client.generate("scripted", SCRIPT, deadline_s=30, wait_for_ready=True).text()


@pytest.mark.parametrize("old", [(service,) for service in SERVICES] + [SERVICES], ids="+".join)
def test_an_old_service_among_new_ones_streams(released: dict[str, Path], old: tuple[str, ...], tmp_path: Path) -> None:
    assert answer(tmp_path, {service: released[service] for service in old}) == "Hello"


def test_stores_of_the_last_release_are_taken_over(released: dict[str, Path], tmp_path: Path) -> None:
    assert answer(tmp_path, released) == "Hello"
    assert answer(tmp_path, {}) == "Hello"
