"""Our OpenAPI document is what the gateway does: requests made from it, right and wrong ones, by schemathesis."""

import json
from typing import Any, TypeAlias

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.integration.platform.running_platform import Platform
from tools.openapi.document import PATH

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


def asked() -> dict[str, Any]:
    """The document, of the one model that is there, and without deadlines that nothing could meet."""
    document: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
    for operations in document["paths"].values():
        for operation in operations.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body is not None:
                body["properties"]["model"] = {"enum": ["scripted"]}
            parameters = operation.get("parameters", [])
            operation["parameters"] = [one for one in parameters if one["name"] != "x-headrace-deadline-ms"]
    return document


DOCUMENT = asked()
PRIVATE = [path for path, operations in DOCUMENT["paths"].items() if not path.endswith("z")]
Case: TypeAlias = schemathesis.Case[Any]
schema = schemathesis.openapi.from_dict(DOCUMENT)
few = schemathesis.openapi.from_dict(DOCUMENT)
few.config.phases.coverage.enabled = False  # every edge of every field: more than a quick run has time for
quick = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
long = settings(parent=quick, max_examples=400)


def check(case: Case, platform: Platform) -> None:
    headers = {"authorization": f"Bearer {platform.api_key}"}
    case.call_and_validate(base_url=platform.http, headers=headers, checks=CHECKS, timeout=30)


@few.parametrize()
@quick
def test_a_few_requests(case: Case, platform: Platform) -> None:
    check(case, platform)


@pytest.mark.slow
@schema.parametrize()
@long
def test_many_requests(case: Case, platform: Platform) -> None:
    check(case, platform)


@pytest.mark.parametrize("path", PRIVATE)
def test_nothing_but_probes_is_without_a_key(path: str, platform: Platform) -> None:
    method = next(iter(DOCUMENT["paths"][path]))
    with httpx.Client(base_url=platform.http, trust_env=False, timeout=60) as stranger:
        assert stranger.request(method, path).status_code == 401
