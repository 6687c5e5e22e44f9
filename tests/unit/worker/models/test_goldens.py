"""The golden files are what transformers says today."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # transformers warns about its own plans
]
GOLDENS = Path(__file__).parent / "goldens"


def make_goldens() -> Any:
    pytest.importorskip("transformers")
    return importlib.import_module("tests.unit.worker.models.make_goldens")


def test_smollm2_outputs_are_remade_the_same() -> None:
    committed = json.loads((GOLDENS / "smollm2.json").read_text())
    remade = make_goldens().smollm2_golden()
    for ours, theirs in zip(committed["answers"], remade["answers"], strict=True):
        assert [ours[key] for key in ("text", "prompt_ids", "output_ids")] == [
            theirs[key] for key in ("text", "prompt_ids", "output_ids")
        ]


def test_family_outputs_are_remade_the_same() -> None:
    committed = json.loads((GOLDENS / "families.json").read_text())
    for family, golden in committed.items():
        remade = make_goldens().family_golden(family)
        assert (remade["ids"], remade["greedy"]) == (golden["ids"], golden["greedy"])
