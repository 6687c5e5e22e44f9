"""The content blocks of one turn as messages of a conversation: results of tools become turns of their own."""

from headrace.v1 import inference_pb2 as pb
from headrace_gateway.http.chat_request import text_part
from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.json_text import compact
from headrace_gateway.http.options import as_object


def read_turn(turn: Fields) -> list[pb.Message]:
    """Raises invalid_argument that names the path of the block."""
    role = turn.text("role")
    if role not in ("user", "assistant"):
        raise invalid(turn.where("role"), "expected user or assistant")
    content = turn.raw("content")
    if isinstance(content, str):
        return [pb.Message(role=role, content=content)]
    if not isinstance(content, list):
        raise invalid(turn.where("content"), "expected a string or an array of blocks")
    reader = _Turn(role)
    for at, block in enumerate(content):
        reader.add(as_object(block, f"{turn.where('content')}[{at}]"))
    return reader.messages()


class _Turn:
    def __init__(self, role: str) -> None:
        self._role = role
        self._own = pb.Message(role=role)
        self._has_own = False
        self._results: list[pb.Message] = []

    def add(self, block: Fields) -> None:
        kind = block.text("type")
        if kind == "text":
            self._own.content += text_part(block.content, block.path, ("text",))
            self._has_own = True
        elif kind == "tool_use" and self._role == "assistant":
            self._own.tool_calls.append(_call(block))
            self._has_own = True
        elif kind == "tool_result" and self._role == "user":
            self._results.append(_result(block))
        elif kind not in ("thinking", "redacted_thinking"):  # thoughts of earlier turns are of no use to a template
            raise invalid(block.where("type"), f"{str(kind)[:40]!r} is not served in a turn of the {self._role}")

    def messages(self) -> list[pb.Message]:
        """The answers to an assistant's calls come before what the user adds."""
        return self._results + ([self._own] if self._has_own or not self._results else [])


def _call(block: Fields) -> pb.ToolCall:
    arguments = block.object("input")
    call = pb.ToolCall(id=block.text("id") or "", name=block.text("name") or "")
    if not call.name:
        raise invalid(block.where("name"), "is required")
    call.arguments = compact(block.raw("input")) if arguments is not None else ""
    return call


def _result(block: Fields) -> pb.Message:
    call_id = block.text("tool_use_id")
    if not call_id:
        raise invalid(block.where("tool_use_id"), "is required")
    content = block.raw("content")
    if content is None or isinstance(content, str):
        text = block.text("content") or ""
    else:
        parts = enumerate(block.items("content") or [])
        text = "".join(text_part(part, f"{block.where('content')}[{at}]", ("text",)) for at, part in parts)
    return pb.Message(role="tool", content=text, tool_call_id=call_id)
