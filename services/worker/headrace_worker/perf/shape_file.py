"""The dimensions of a model by the word that a user gives: a built-in name, a config.json, or a folder with one."""

import json
from dataclasses import replace
from pathlib import Path

from headrace_worker.perf.errors import PerfError, UnknownNameError
from headrace_worker.perf.model_shape import BUILT_IN_MODELS, ModelShape, from_config


def shape_named(model: str) -> ModelShape:
    """`PerfError` on `model` says what is wrong with it."""
    if model in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise UnknownNameError("model", f"{model!r} is neither a config.json nor one of {', '.join(BUILT_IN_MODELS)}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PerfError("model", f"{path} is not readable JSON: {error}") from None
    try:
        return replace(from_config(config), name=path.resolve().parent.name)
    except PerfError as error:
        raise PerfError("model", f"{path}: {error}") from None
