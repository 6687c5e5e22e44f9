"""What the scripted engine cannot keep is refused by the name of the field, and not as a full fleet."""

from typing import Any

import pytest

from tests.integration.platform.http.http_client import Http, user

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}}


@pytest.mark.parametrize("form", [{"type": "json_object"}, SCHEMA])
def test_a_model_without_grammars_names_the_format(http: Http, form: dict[str, Any]) -> None:
    error = http.refused("/v1/chat/completions", {"model": "scripted", "messages": user("hi"), "response_format": form})
    assert (error["code"], error["param"]) == ("invalid_argument", "response_format")
    assert "no engine of this model" in error["message"]


def test_a_schema_has_a_limit(http: Http) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": "a" * 70_000}}}
    body = {"model": "scripted", "messages": user("hi"), "response_format": schema}
    error = http.refused("/v1/chat/completions", body)
    assert (error["code"], error["param"]) == ("invalid_argument", "response_format.text")
    assert "65536" in error["message"]
