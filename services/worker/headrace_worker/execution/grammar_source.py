"""A constraint as a caller writes it, made into what xgrammar compiles, or one sentence about what is wrong with it.

Pure: knows neither a model nor the compiler. A keyword of JSON Schema that the compiler would pass over in silence is
refused by name, so that what ends `completed` validates; `oneOf` alone is read as `anyOf`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from headrace_worker.scheduling.request import Grammar

MAX_TEXT_BYTES = 64 * 1024
_MAX_CHOICES = 4096
# Between two parts of a JSON text; a model that may write spaces for ever sometimes does.
MAX_WHITESPACE = 32
_ANY_OBJECT = '{"type":"object"}'

# Not honoured; a False value, or none of its own branches, asks for nothing.
_REFUSED = frozenset({"uniqueItems", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"})
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_SINGLE = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "contains", "propertyNames")


class Source(NamedTuple):
    """What the compiler gets. It can be told from every other one."""

    language: Literal["json_schema", "regex", "ebnf"]
    text: str


class BadSource(ValueError):
    """The constraint cannot be served; the text says why, in one sentence."""


def read_source(grammar: Grammar) -> Source:
    """Raises BadSource."""
    size = len(grammar.text.encode(errors="surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise BadSource(f"has {size} bytes; at most {MAX_TEXT_BYTES} are compiled")
    match grammar.kind:
        case "json_object":
            return Source("json_schema", _ANY_OBJECT)
        case "json_schema":
            _check_schema(_parse(grammar.text))
            return Source("json_schema", grammar.text)
        case "regex":
            return Source("regex", grammar.text)
        case "grammar":
            return Source("ebnf", grammar.text)
        case "choice":
            return Source("ebnf", _choice(_parse(grammar.text)))
        case _:
            raise BadSource(f"there is no kind {grammar.kind[:40]!r}")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise BadSource(f"is not JSON: {detail}") from None


def _choice(choices: Any) -> str:
    if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
        raise BadSource("must be a JSON array of strings that are not empty")
    if not 1 <= len(choices) <= _MAX_CHOICES:
        raise BadSource(f"must have 1 to {_MAX_CHOICES} choices, has {len(choices)}")
    return "root ::= " + " | ".join(f'"{_escape(choice)}"' for choice in choices)


def _escape(text: str) -> str:
    """As a literal of the grammar's language, which knows \\UXXXXXXXX for any code point."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in text)


def _check_schema(schema: Any) -> None:
    for path, node in _schemas(schema):
        where = path or "the schema"
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise BadSource(f"{where}: a schema is an object or a boolean")
        refused = next((key for key in node if key in _REFUSED and node[key] is not False), None)
        if refused is not None:
            raise BadSource(f"{where}: the keyword {refused} is not served")
        _check_combinations(where, node)


def _check_combinations(where: str, node: dict[str, Any]) -> None:
    branches = node.get("allOf")
    if isinstance(branches, list) and len(branches) > 1:
        raise BadSource(f"{where}: allOf is served with one branch only")
    if "pattern" in node and ("minLength" in node or "maxLength" in node):
        raise BadSource(f"{where}: pattern is not served together with minLength or maxLength")
    if "multipleOf" in node and node.get("type") != "integer":
        raise BadSource(f"{where}: multipleOf is served for type integer only")
    if not str(node.get("$ref", "#")).startswith("#"):
        raise BadSource(f"{where}: $ref must point into the schema itself")


def _schemas(root: Any) -> Iterator[tuple[str, Any]]:
    """Every schema in the schema with its path, its own first. Not recursive: depth is the caller's choice."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        if not isinstance(node, dict):
            continue
        for key in _BY_NAME:
            if isinstance(children := node.get(key), dict):
                waiting += [(f"{path}/{key}/{name[:40]}", child) for name, child in children.items()]
        for key in _LISTS:
            if isinstance(branches := node.get(key), list):
                waiting += [(f"{path}/{key}/{place}", child) for place, child in enumerate(branches)]
        waiting += [(f"{path}/{key}", node[key]) for key in _SINGLE if isinstance(node.get(key), dict)]
