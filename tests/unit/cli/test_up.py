"""The first words that `headrace up` suggests have an answer on the fleet that it started."""

import shlex
from pathlib import Path

import pytest

from headrace_cli.verbs.up import example

ROOT = Path(__file__).parents[3]


def test_a_scripted_model_is_asked_for_what_a_script_can_say() -> None:
    words = shlex.split(example((ROOT / "examples/scripted.yaml").read_text()))
    assert len(words) == 1 and words[0].startswith('["Hel"') and "capital" not in words[0]


@pytest.mark.parametrize("source", ["HuggingFaceTB/SmolLM2-135M-Instruct", "/models/m"])
def test_a_model_that_can_speak_is_asked_a_question(source: str) -> None:
    assert example(f"models: {{m: {{source: {source}}}}}") == '"What is the capital of France?"'


def test_of_several_models_one_is_named() -> None:
    assert example("models: {m: {source: scripted}, n: {source: scripted}}").startswith("--model m '[")
    assert example("") == '"What is the capital of France?"'
