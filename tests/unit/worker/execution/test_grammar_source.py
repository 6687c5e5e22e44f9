"""A constraint is made into what the compiler takes, or refused in one sentence; nothing that is written raises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.execution.grammar_source import MAX_TEXT_BYTES, BadSource, Source, read_source
from headrace_worker.scheduling.request import Grammar

KINDS = ("json_object", "json_schema", "regex", "grammar", "choice")


def refusal(kind: str, text: str) -> str:
    with pytest.raises(BadSource) as caught:
        read_source(Grammar(kind, text))
    return str(caught.value)


@given(kind=st.sampled_from((*KINDS, "poem", "")), text=st.text() | st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["properties", "items", "anyOf", "allOf", "$ref", "type", "not", "$defs"]), inner, max_size=4),
).map(json.dumps))  # fmt: skip
def test_nothing_raises_but_a_bad_source(kind: str, text: str) -> None:
    try:
        assert isinstance(read_source(Grammar(kind, text)), Source)
    except BadSource as error:
        assert str(error)


def test_every_kind_reaches_the_compiler() -> None:
    assert read_source(Grammar("json_object", "")) == ("json_schema", '{"type":"object"}')
    assert read_source(Grammar("json_schema", '{"type": "integer"}')) == ("json_schema", '{"type": "integer"}')
    assert read_source(Grammar("regex", "a+")) == ("regex", "a+")
    assert read_source(Grammar("grammar", 'root ::= "a"')) == ("ebnf", 'root ::= "a"')
    assert read_source(Grammar("choice", '["ab", "é"]')) == ("ebnf", 'root ::= "ab" | "\\U000000e9"')


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', '{"a": 1}', '["a", 1]', '["a", ""]', "[" * 50_000])
def test_choices_are_a_list_of_texts(text: str) -> None:
    assert "JSON" in refusal("choice", text) or "choices" in refusal("choice", text)


def test_a_text_is_bounded_in_bytes() -> None:
    assert str(MAX_TEXT_BYTES) in refusal("regex", "é" * (MAX_TEXT_BYTES // 2 + 1))
    assert read_source(Grammar("regex", "é" * (MAX_TEXT_BYTES // 2)))


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"not": {}}}}, "/properties/a"),
        ({"$defs": {"x": {"if": {}}}}, "if"),
        ({"items": {"anyOf": [{}, {"dependentRequired": {}}]}}, "/items/anyOf/1"),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, "allOf"),
        ({"type": "string", "pattern": "a", "minLength": 2}, "pattern"),
        ({"type": "number", "multipleOf": 0.5}, "multipleOf"),
        ({"$ref": "http://elsewhere/"}, "$ref"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ([], "the schema"),
        ("object", "the schema"),
    ],
)
def test_what_the_compiler_would_pass_over_is_refused_by_name(schema: Any, word: str) -> None:
    assert word in refusal("json_schema", json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"properties": {"not": {"type": "string"}, "if": {"const": {"uniqueItems": True}}}},
        {"enum": [{"not": 1}], "default": {"if": 2}, "examples": [{"allOf": [1, 2]}]},
        {"uniqueItems": False, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"multipleOf": 5, "type": "integer"}}},
    ],
)
def test_names_of_properties_and_values_are_not_keywords(schema: Any) -> None:
    text = json.dumps(schema)
    assert read_source(Grammar("json_schema", text)) == ("json_schema", text)
