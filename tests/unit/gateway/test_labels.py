"""Every text that a client may attach to a request is bounded, and a refusal names it."""

from typing import Any

import pytest

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.labels import check_labels, check_length
from headrace_kit.errors import HeadraceError


def field_of(**fields: Any) -> str | None:
    try:
        check_labels(pb.GenerateRequest(**fields))
    except HeadraceError as error:
        assert error.reason == "invalid_argument"
        return error.field
    return None


@pytest.mark.parametrize("name", ["session_id", "retry_of", "slo_class"])
def test_names_end_at_256_characters(name: str) -> None:
    assert field_of(**{name: "x" * 256}) is None
    assert field_of(**{name: "x" * 257}) == name


@pytest.mark.parametrize("value", ["x" * 129, "a\nb", "a b", "é"])
def test_an_id_that_may_not_be_echoed_is_refused(value: str) -> None:
    assert field_of(client_request_id=value) == "client_request_id"


def test_an_id_that_may_be_echoed_is_taken() -> None:
    assert field_of(client_request_id="~" * 128) is None
    assert field_of(client_request_id="") is None


@pytest.mark.parametrize("metadata", [{"k" * 513: ""}, {"k": "v" * 513}, {"": "v"}, {str(n): "" for n in range(17)}])
def test_metadata_is_small(metadata: dict[str, str]) -> None:
    assert field_of(metadata=metadata) == "metadata"


def test_a_length_is_said() -> None:
    with pytest.raises(HeadraceError, match="response_id: at most 256 characters, got 300"):
        check_length("response_id", "x" * 300)
