"""Compiles the contract whenever this package is built, editable installs included."""

from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtocHook(BuildHookInterface[Any]):
    """Runs protoc over every .proto; the stubs land beside their source, where git ignores them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        sources = sorted(str(path.relative_to(root)) for path in root.glob("headrace/**/*.proto"))
        outputs = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
        if protoc.main(["protoc", f"-I{root}", *outputs, *sources]) != 0:
            raise RuntimeError("protoc failed")
