"""A constraint's kind and size are checked by name before anybody is asked."""

import pytest

from headrace.v1.response_pb2 import Grammar
from headrace_gateway.grammar import MAX_TEXT_BYTES, check_grammar
from headrace_kit.errors import HeadraceError


@pytest.mark.parametrize(
    ("field", "grammar"),
    [
        ("grammar.kind", Grammar(text="a")),
        ("grammar.kind", Grammar(kind=99, text="a")),  # type: ignore[arg-type]
        ("grammar.text", Grammar(kind=Grammar.KIND_REGEX)),
        ("grammar.text", Grammar(kind=Grammar.KIND_CHOICE)),
        ("grammar.text", Grammar(kind=Grammar.KIND_JSON_OBJECT, text="{}")),
        ("grammar.text", Grammar(kind=Grammar.KIND_GRAMMAR, text="é" * (MAX_TEXT_BYTES // 2 + 1))),
    ],
)
def test_what_is_wrong_is_named(field: str, grammar: Grammar) -> None:
    with pytest.raises(HeadraceError) as caught:
        check_grammar(grammar)
    assert (caught.value.reason, caught.value.field) == ("invalid_argument", field)


def test_what_may_compile_is_let_through() -> None:
    check_grammar(Grammar(kind=Grammar.KIND_JSON_OBJECT))
    check_grammar(Grammar(kind=Grammar.KIND_JSON_SCHEMA, text="{}"))
    check_grammar(Grammar(kind=Grammar.KIND_GRAMMAR, text="é" * (MAX_TEXT_BYTES // 2)))
