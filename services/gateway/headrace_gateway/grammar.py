"""What can be said about a constraint before a worker compiles it: its kind and its size. Pure."""

from headrace.v1 import response_pb2
from headrace_kit.errors import HeadraceError

MAX_TEXT_BYTES = 64 * 1024  # what a worker compiles at most


def check_grammar(grammar: response_pb2.Grammar) -> None:
    """Raises invalid_argument that names the field; whether it compiles is the worker's to say, as invalid_grammar."""
    kind = grammar.kind
    if kind == response_pb2.Grammar.KIND_UNSPECIFIED or kind not in response_pb2.Grammar.Kind.values():
        raise _invalid("grammar.kind", f"there is no kind {kind}")
    if kind == response_pb2.Grammar.KIND_JSON_OBJECT and grammar.text:
        raise _invalid("grammar.text", "must be empty: any JSON object is asked for")
    if kind != response_pb2.Grammar.KIND_JSON_OBJECT and not grammar.text:
        raise _invalid("grammar.text", "is empty")
    if len(grammar.text.encode()) > MAX_TEXT_BYTES:
        raise _invalid("grammar.text", f"has more than {MAX_TEXT_BYTES} bytes")


def _invalid(field: str, detail: str) -> HeadraceError:
    return HeadraceError("invalid_argument", f"{field}: {detail}", field=field)
