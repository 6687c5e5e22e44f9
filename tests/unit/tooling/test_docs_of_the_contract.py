"""What is written about the contract says what the code does."""

import re

import pytest

from headrace_gateway.http import chat_request, completions
from headrace_gateway.http.app import GENERATING
from headrace_gateway.http.known_fields import ADVISORY, KnownFields
from headrace_gateway.http.messages import request as messages_request
from headrace_gateway.http.responses import request as responses_request
from headrace_kit.errors import REASONS
from tools import errors_doc

API_DOC = errors_doc.PATH.with_name("api.md").read_text("utf-8")
FIELDS = [chat_request.FIELDS, completions.FIELDS, responses_request.FIELDS, messages_request.FIELDS]


def test_the_page_of_errors_is_fresh() -> None:
    assert errors_doc.PATH.read_text("utf-8") == errors_doc.render(), "run: python -m tools.errors_doc"


def test_every_reason_has_a_section() -> None:
    assert {row.phase for row in REASONS.values()} == set(errors_doc.SECTIONS)
    assert all(f"| `{name}` |" in errors_doc.render() for name in REASONS)


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", API_DOC, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/api.md has no section {title}"
    return found.group(1)


@pytest.mark.parametrize(("path", "fields"), list(zip(GENERATING, FIELDS, strict=True)), ids=list(GENERATING))
def test_every_field_of_an_api_is_described(path: str, fields: KnownFields) -> None:
    text = section(f"POST {path}") + section("Fields that every API takes")
    named = set(re.findall(r"`([a-z_]+)`", text))
    assert fields.honoured | fields.refused | (fields.advisory - ADVISORY) <= named


def test_advisory_fields_are_described() -> None:
    assert set(re.findall(r"`([a-z_]+)`", section("Fields that every API takes"))) >= ADVISORY
