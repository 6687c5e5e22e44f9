"""Models from a Hub on loopback: what is fetched, how it is named, and what happens when something is not there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_worker.models.checkpoint import open_checkpoint
from headrace_worker.models.errors import ModelReferenceError
from headrace_worker.models.hub import fetch_hub_model
from headrace_worker.models.progress import silent
from headrace_worker.models.reference import HubModel
from tests.unit.worker.models.fake_hub import COMMIT, REPOSITORY, FakeHub, serve
from tests.unit.worker.models.tiny import write_tiny

MAIN = HubModel(REPOSITORY, "main")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    origin = write_tiny(tmp_path / "origin", "llama")
    files = {path.name: path.read_bytes() for path in origin.iterdir()}
    with serve(FakeHub({**files, "pytorch_model.bin": b"pickle", "onnx/config.json": b"{}"})) as hub:
        yield hub


def test_a_fetched_model_opens_and_is_named_by_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    snapshot = fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
    assert snapshot.commit == COMMIT
    assert open_checkpoint(str(snapshot.directory), tmp_path).config.family == "llama"


def test_only_safe_files_of_the_top_level_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
    assert set(hub.downloads) == {"config.json", "tokenizer.json", "model.safetensors"}


def test_nothing_is_fetched_twice(hub: FakeHub, tmp_path: Path) -> None:
    for _ in range(2):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
    assert set(hub.downloads.values()) == {1}


def test_progress_counts_bytes_and_ends_at_one(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[float] = []
    fetch_hub_model(MAIN, tmp_path / "cache", lambda phase, share: seen.append(share), hub.endpoint)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert seen[0] < 1.0


def test_a_model_fetched_before_is_served_while_the_hub_is_away(hub: FakeHub, tmp_path: Path) -> None:
    before = fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
    away = fetch_hub_model(MAIN, tmp_path / "cache", silent, "http://127.0.0.1:9")
    assert away == before


def test_a_fetch_that_broke_off_is_not_served_from_the_cache(hub: FakeHub, tmp_path: Path) -> None:
    hub.broken.add("tokenizer.json")
    with pytest.raises(ModelReferenceError):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
    with pytest.raises(ModelReferenceError, match="cache does not hold"):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, "http://127.0.0.1:9")


def test_an_unreachable_hub_without_a_cache_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        ModelReferenceError, match=r"hf:acme/tiny@main: the Hub cannot be reached .* cache does not hold"
    ):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, "http://127.0.0.1:9")


@pytest.mark.parametrize("model", [HubModel("acme/none", "main"), HubModel(REPOSITORY, "v9")])
def test_an_unknown_repository_or_revision_is_named(hub: FakeHub, tmp_path: Path, model: HubModel) -> None:
    with pytest.raises(ModelReferenceError, match=f"^hf:{model.repository}@{model.revision}: "):
        fetch_hub_model(model, tmp_path / "cache", silent, hub.endpoint)


def test_a_file_that_fails_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.broken.add("model.safetensors")
    with pytest.raises(ModelReferenceError, match=r"hf:acme/tiny@main: model\.safetensors: "):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)


def test_a_repository_without_weights_we_can_read_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"pytorch_model.bin": b"pickle"}
    with pytest.raises(ModelReferenceError, match="holds none of"):
        fetch_hub_model(MAIN, tmp_path / "cache", silent, hub.endpoint)
