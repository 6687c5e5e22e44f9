"""The OpenAPI document is current, and has the paths, fields and answers that the gateway has."""

import json
from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from headrace_gateway.http.app import GENERATING, App
from headrace_gateway.http.known_fields import KnownFields
from headrace_gateway.http.messages.request import FIELDS
from tools.openapi import bodies
from tools.openapi.document import PATH, document, render


def routes() -> set[tuple[str, str]]:
    app: Any = App(None, None, 0).build()  # type: ignore[arg-type]
    found = set()
    for route in app.routes:
        assert isinstance(route, Route) and route.methods is not None
        path = route.path.replace(":path}", "}")
        found |= {(path, method.lower()) for method in route.methods - {"HEAD"}}
    return found


def test_the_document_is_fresh() -> None:
    assert PATH.read_text("utf-8") == render(), "run: python -m tools.openapi"


def test_it_has_every_route_and_no_other() -> None:
    described = {(path, method) for path, operations in document()["paths"].items() for method in operations}
    assert described == routes()


def test_whatever_generates_can_stream() -> None:
    for path, operations in document()["paths"].items():
        streams = "text/event-stream" in operations.get("post", {}).get("responses", {}).get("200", {}).get(
            "content", {}
        )
        assert streams == (path in GENERATING)


def test_a_field_without_a_schema_is_an_error() -> None:
    fields = KnownFields("messages", FIELDS.honoured | {"brand_new"}, FIELDS.advisory, FIELDS.refused)
    with pytest.raises(KeyError, match="brand_new"):
        bodies.body(fields, bodies.MESSAGES, ())


def test_a_schema_without_a_field_is_an_error() -> None:
    fields = KnownFields("messages", FIELDS.honoured - {"system"}, FIELDS.advisory, FIELDS.refused)
    with pytest.raises(AssertionError, match="system"):
        bodies.body(fields, bodies.MESSAGES, ())


def test_every_schema_in_it_is_one() -> None:
    text = json.loads(render())
    schemas = list(text["components"]["schemas"].values())
    for operations in text["paths"].values():
        for operation in operations.values():
            schemas += [one["schema"] for one in operation.get("parameters", [])]
            schemas += [one["schema"] for one in operation.get("requestBody", {}).get("content", {}).values()]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
