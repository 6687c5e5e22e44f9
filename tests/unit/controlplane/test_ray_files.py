"""The Ray launcher without Ray: what it asks of the keeper, what it makes of the answers, what goes to another node."""

import importlib.util
import stat
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from headrace_controlplane.launcher.base import Launched, LaunchSpec
from headrace_controlplane.launcher.ray_cluster import RayLauncher, RaySite
from headrace_controlplane.launcher.ray_files import WANT, Found, RayFiles, Wanted

SPEC = LaunchSpec("gpu-0", "gpu", "m", "digest", ("python", "-c", "pass"), 5.0, launcher="ray", num_cpus=4, num_gpus=4)


@pytest.fixture
def files(tmp_path: Path) -> RayFiles:
    return RayFiles(tmp_path / "ray")


@pytest.fixture
def launcher(tmp_path: Path, files: RayFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayLauncher]:
    """Its keeper is a process that only waits."""
    keeper = tmp_path / "keeper"
    keeper.write_text("#!/bin/sh\ncat > /dev/null\n")
    keeper.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(keeper))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    made = RayLauncher(tmp_path / "ray", RaySite())
    yield made
    made.close()


def only(launcher: RayLauncher) -> Launched:
    (seen,) = launcher.observe()
    return seen


def wanted(files: RayFiles) -> Wanted:
    return files.wanted()["gpu-0"]


def test_a_start_has_a_name_that_no_other_start_has(launcher: RayLauncher, files: RayFiles) -> None:
    launcher.start(SPEC)
    first = wanted(files)
    launcher.start(SPEC)
    assert (first.num_cpus, first.num_gpus, first.drain_s) == (4, 4, 5.0)
    assert wanted(files).actor != first.actor


def test_what_was_found_of_an_earlier_start_says_nothing_of_this_one(launcher: RayLauncher, files: RayFiles) -> None:
    launcher.start(SPEC)
    files.tell("gpu-0", Found(wanted(files).start, is_made=True, alive=False, words="boom"))
    assert (only(launcher).alive, only(launcher).last_words) == (False, "boom")
    launcher.start(SPEC)
    assert (only(launcher).alive, only(launcher).last_words) == (True, "")


def test_a_placed_one_has_its_pid_and_a_waiting_one_its_reason(launcher: RayLauncher, files: RayFiles) -> None:
    launcher.start(SPEC)
    files.tell("gpu-0", Found(wanted(files).start, is_made=True, words="waits for a node with 4 CPUs and 4 GPUs free"))
    assert only(launcher).alive and "4 GPUs" in only(launcher).last_words
    files.tell("gpu-0", Found(wanted(files).start, is_made=True, pid=17, node="10.0.0.7"))
    assert only(launcher) == Launched(SPEC, alive=True, pid=17)


def test_trouble_of_the_keeper_is_told_and_kills_nobody(launcher: RayLauncher, files: RayFiles) -> None:
    launcher.start(SPEC)
    files.word = "the Ray cluster at auto cannot be used: none found"
    assert (only(launcher).alive, only(launcher).last_words) == (True, files.word)


def test_without_ray_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    launcher = RayLauncher(tmp_path / "ray", RaySite())
    launcher.start(SPEC)
    assert "pip install 'headrace-controlplane[ray]'" in only(launcher).last_words
    launcher.close()


def test_secrets_go_along_and_paths_become_the_nodes_own(
    launcher: RayLauncher, files: RayFiles, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    flags = ("--service-token-file", str(tmp_path / "token"), "--state-dir", str(tmp_path), "--announce", "/here/a")
    launcher.start(replace(SPEC, command=("python", "-m", "headrace_worker", "--model", "m", *flags)))
    found = wanted(files)
    assert found.files == {"token": "secret"}
    assert not any(str(tmp_path) in word or "/here" in word for word in found.command)
    assert found.command[-4:] == ["--grpc-listen", "{node_ip}:0", "--http-listen", "{node_ip}:0"]
    assert found.command[6:8] == ["{directory}/token", "--state-dir"]
    assert stat.S_IMODE(files.path("gpu-0", WANT).stat().st_mode) == 0o600


def test_torn_files_are_no_files(files: RayFiles) -> None:
    files.want(Wanted("gpu-0", "s", [], {}, "/d", 1, 0, 1.0), asdict(SPEC))
    files.path("gpu-0", WANT).write_text("{")
    assert files.wanted() == {}
    assert files.found("gpu-0") is None
