"""From a regular expression, one that finds its beginnings: what may still become a match when more text comes.

For r = ab*c it accepts a, ab, abb, abc. Built from Python's syntax tree, for RE2: linear time, no look-around, no
back-references. Its size is at most the expression's times the depth of its nesting.
"""

import re
from importlib import import_module
from typing import Any

# Private modules of the standard library, which type checkers see or not, depending on what else they have read.
kinds: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
_ANCHORS = {
    kinds.AT_BEGINNING: "^",
    kinds.AT_BEGINNING_STRING: r"\A",
    kinds.AT_BOUNDARY: r"\b",
    kinds.AT_NON_BOUNDARY: r"\B",
    kinds.AT_END: "$",
    kinds.AT_END_STRING: r"\z",
}
_CLASSES = {
    kinds.CATEGORY_DIGIT: r"\d",
    kinds.CATEGORY_NOT_DIGIT: r"\D",
    kinds.CATEGORY_SPACE: r"\s",
    kinds.CATEGORY_NOT_SPACE: r"\S",
    kinds.CATEGORY_WORD: r"\w",
    kinds.CATEGORY_NOT_WORD: r"\W",
}
_MOST_REPEATS = 1000
NOTHING = None
"""The expression that accepts nothing."""


def translate(pattern: str) -> tuple[str, str]:
    """The pattern and its beginnings (none of them empty), in RE2's syntax; raises ValueError."""
    try:
        tree = parser.parse(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    flags = "".join(letter for letter, flag in _FLAGS.items() if tree.state.flags & flag)
    if tree.getwidth()[0] == 0:
        raise ValueError("it matches empty text")
    whole, beginnings = _all(list(tree)), _beginnings(list(tree))
    assert beginnings is not NOTHING, "an expression that matches some character begins with one"
    return f"(?{flags}:{whole})" if flags else whole, f"(?{flags}:{beginnings})" if flags else beginnings


def _all(nodes: list[Any]) -> str:
    return "".join(_one(node) for node in nodes)


def _one(node: Any) -> str:
    kind, value = node
    if kind is kinds.LITERAL:
        return _character(value)
    if kind is kinds.NOT_LITERAL:
        return f"[^{_character(value)}]"
    if kind is kinds.ANY:
        return "."
    if kind is kinds.AT:
        return _ANCHORS[value]
    if kind is kinds.IN:
        return _set(value)
    if kind is kinds.BRANCH:
        return "(?:" + "|".join(_all(list(branch)) for branch in value[1]) + ")"
    if kind is kinds.SUBPATTERN:
        return _group(value, _all(list(value[3])))
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
        least, most, body = value
        return f"(?:{_all(list(body))}){_times(least, most)}" + ("?" if kind is kinds.MIN_REPEAT else "")
    raise ValueError(f"{str(kind).lower()} cannot be found in linear time")


def _beginnings(nodes: list[Any]) -> str | None:
    """b(xy) = b(x) | x b(y); an anchor has none of its own."""
    if not nodes:
        return NOTHING
    first, rest = _beginning(nodes[0]), _beginnings(nodes[1:])
    if rest is NOTHING:
        return first
    onwards = _one(nodes[0]) + rest
    return onwards if first is NOTHING else f"(?:{first}|{onwards})"


def _beginning(node: Any) -> str | None:
    kind, value = node
    if kind is kinds.AT:
        return NOTHING
    if kind is kinds.BRANCH:
        found = [b for branch in value[1] if (b := _beginnings(list(branch))) is not NOTHING]
        return "(?:" + "|".join(found) + ")" if found else NOTHING
    if kind is kinds.SUBPATTERN:
        inner = _beginnings(list(value[3]))
        return NOTHING if inner is NOTHING else _group(value, inner)
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
        _, most, body = value
        inner = _beginnings(list(body))
        if inner is NOTHING or most == 0:
            return NOTHING
        others = most if most is kinds.MAXREPEAT else most - 1
        return inner if others == 0 else f"(?:{_all(list(body))}){_times(0, others)}{inner}"
    return _one(node)


def _group(value: Any, inner: str) -> str:
    _, added, removed, _ = value
    on = "".join(letter for letter, flag in _FLAGS.items() if added & flag)
    off = "".join(letter for letter, flag in _FLAGS.items() if removed & flag)
    return f"(?{on}{'-' + off if off else ''}:{inner})"


def _times(least: int, most: Any) -> str:
    if least > _MOST_REPEATS or (most is not kinds.MAXREPEAT and most > _MOST_REPEATS):
        raise ValueError(f"more than {_MOST_REPEATS} repeats")
    return f"{{{least},}}" if most is kinds.MAXREPEAT else f"{{{least},{most}}}"


def _set(items: list[Any]) -> str:
    inside = ""
    for kind, value in items:
        if kind is kinds.NEGATE:
            inside += "^"
        elif kind is kinds.LITERAL:
            inside += _character(value)
        elif kind is kinds.RANGE:
            inside += f"{_character(value[0])}-{_character(value[1])}"
        else:
            inside += _CLASSES[value]
    return f"[{inside}]"


def _character(code: int) -> str:
    return chr(code) if chr(code).isalnum() and code < 128 else f"\\x{{{code:x}}}"
