"""Reading a request body: bounded, plain, one JSON object. Knows no field."""

import json
from typing import Any, NoReturn

from starlette.requests import Request

from headrace_gateway.http.fields import Fields
from headrace_kit.errors import HeadraceError


async def read_object(request: Request, max_bytes: int) -> Fields:
    """The JSON object of the body; raises too_large or invalid_argument."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise HeadraceError("invalid_argument", f"content-encoding {encoding[:40]!r} is not accepted", field="body")
    if int(request.headers.get("content-length") or 0) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return Fields(_parse(bytes(body)))


def _too_large(max_bytes: int) -> HeadraceError:
    return HeadraceError("too_large", f"the body is over the limit of {max_bytes} bytes", field="body")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise HeadraceError("invalid_argument", "the body is not UTF-8", field="body") from error
    except RecursionError as error:
        raise HeadraceError("invalid_argument", "the body is nested too deeply", field="body") from error
    except ValueError as error:
        raise HeadraceError("invalid_argument", f"the body is not valid JSON: {error}", field="body") from error
    if not isinstance(content, dict):
        raise HeadraceError("invalid_argument", "the body must be a JSON object", field="body")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
