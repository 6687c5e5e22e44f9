"""`headrace conformance`: the words that reach the kit, and whose key it gets."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_cli.__main__ import main
from headrace_cli.verbs import conformance

LOCAL = "127.0.0.1:41234"


class Became(Exception):
    """Stands for the process that the verb becomes."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the verb becomes, in a state directory whose gateway listens at LOCAL."""
    (tmp_path / "announce").mkdir()
    (tmp_path / "announce/gateway.json").write_text(json.dumps({"public_http": LOCAL}))
    (tmp_path / "api-key").write_text("hr_local_key\n")
    seen: dict[str, Any] = {"state_dir": str(tmp_path)}

    def become(_: str, words: list[str], environment: dict[str, str]) -> None:
        seen.update(words=words[2:], environment=environment)
        raise Became

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.delenv(conformance.API_KEY, raising=False)
    return seen


def call(seen: dict[str, Any], *words: str) -> None:
    with pytest.raises(Became):
        main(["conformance", "--state-dir", seen["state_dir"], *words])


def test_every_flag_reaches_the_kit(became: dict[str, Any]) -> None:
    call(became, f"http://{LOCAL}", "--model", "m", "--grpc", "h:1", "--control", "--json", "--junit", "f.xml",
         "--only", "grpc.", "--only", "stop.")  # fmt: skip
    assert became["words"] == [
        "headrace_conformance", f"http://{LOCAL}", "--model", "m", "--grpc", "h:1", "--junit", "f.xml",
        "--control", "--json", "--only", "grpc.", "--only", "stop.",
    ]  # fmt: skip
    assert became["environment"]["HEADRACE_STATE_DIR"] == became["state_dir"]


def test_the_local_gateway_gets_its_own_key_and_not_on_the_command_line(became: dict[str, Any]) -> None:
    call(became, f"http://{LOCAL}/v1")
    assert became["environment"][conformance.API_KEY] == "hr_local_key"
    assert "hr_local_key" not in became["words"]


def test_another_server_never_gets_the_local_key(became: dict[str, Any]) -> None:
    call(became, "https://api.example.org/v1")
    assert conformance.API_KEY not in became["environment"]


def test_a_given_key_wins(became: dict[str, Any]) -> None:
    call(became, f"http://{LOCAL}", "--api-key", "sk-mine")
    assert became["environment"][conformance.API_KEY] == "sk-mine"


def test_without_the_kit_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="needs the distribution headrace-conformance"):
        main(["conformance", "http://localhost:1"])
