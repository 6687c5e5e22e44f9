"""Numbers of a body: whatever JSON can say is a number of ours or a refusal that names the field."""

import json
import sys

import pytest

from headrace_gateway.http.fields import Fields
from headrace_kit.errors import HeadraceError


@pytest.mark.parametrize("digits", [309, 400, 4000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_that_no_float_can_hold_is_refused_by_name(sign: str, digits: int) -> None:
    body = Fields(json.loads(f'{{"temperature": {sign}1{"0" * digits}}}'))
    with pytest.raises(HeadraceError) as refused:
        body.number("temperature")
    assert (refused.value.reason, refused.value.field) == ("invalid_argument", "temperature")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), True, "1"])
def test_what_is_no_finite_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(HeadraceError) as refused:
        Fields({"temperature": value}).number("temperature")
    assert refused.value.field == "temperature"


@pytest.mark.parametrize("value", [0, -1, 0.5, sys.float_info.max, -sys.float_info.max, int(sys.float_info.max)])
def test_the_edges_are_numbers(value: float) -> None:
    assert Fields({"temperature": value}).number("temperature") == float(value)
