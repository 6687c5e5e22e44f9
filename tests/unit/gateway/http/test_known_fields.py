"""A field of our own at a place where it has no effect is told where it belongs; anybody else's is ignored."""

import pytest

from headrace_gateway.http import chat_request, completions
from headrace_gateway.http.fields import Fields
from headrace_gateway.http.known_fields import KnownFields
from headrace_gateway.http.messages import request as messages
from headrace_gateway.http.responses import request as responses
from headrace_kit.errors import HeadraceError

APIS = [chat_request.FIELDS, completions.FIELDS, messages.FIELDS, responses.FIELDS]


@pytest.mark.parametrize("fields", APIS, ids=lambda fields: fields.api)
@pytest.mark.parametrize(
    ("name", "place"),
    [("retry_of", "x-headrace-retry-of"), ("slo_class", "x-headrace-class")],
)
def test_a_field_of_ours_in_the_wrong_place_is_told_the_right_one(fields: KnownFields, name: str, place: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        fields.check(Fields({"model": "m", name: "resp_1"}))
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", name)
    assert place in refused.value.message
    fields.check(Fields({"model": "m", name: "", "anybody_else": "resp_1"}))


@pytest.mark.parametrize("empty", [None, False, "", [], {}])
def test_what_is_not_served_may_be_there_if_it_says_nothing(empty: object) -> None:
    completions.FIELDS.check(Fields({"model": "m", "response_format": empty}))


@pytest.mark.parametrize("value", [0, 0.0, True, "text", {"type": "text"}])
def test_what_is_not_served_is_refused_by_name(value: object) -> None:
    with pytest.raises(HeadraceError) as refused:
        completions.FIELDS.check(Fields({"model": "m", "response_format": value}))
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", "response_format")
