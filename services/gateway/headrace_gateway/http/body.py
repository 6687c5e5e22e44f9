"""Reading a request body: bounded in size and time, plain, one JSON object. Knows no field."""

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from headrace_gateway.http.fields import Fields, invalid
from headrace_gateway.http.lone_surrogates import place_of_lone_surrogate
from headrace_gateway.nesting import MAX_NESTING, nests_too_deep
from headrace_kit.errors import HeadraceError

BODY_S = 30.0
"""A body that takes longer than this is not being sent in earnest."""
_TOO_DEEP = f"the body is nested too deeply: at most {MAX_NESTING} arrays and objects inside one another"


async def read_object(request: Request, max_bytes: int) -> Fields:
    """The JSON object of the body; raises too_large or invalid_argument."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        # What cannot be sent compressed cannot be small on the wire and huge in memory.
        raise _invalid(f"content-encoding {encoding[:40]!r} is not accepted")
    if int(request.headers.get("content-length") or 0) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(BODY_S):
            return Fields(_parse(await _read(request, max_bytes)))
    except TimeoutError as error:
        raise _invalid(f"the body did not arrive within {BODY_S:g} s") from error
    except ClientDisconnect as error:
        raise HeadraceError("disconnect", "the client went away before its body was here") from error


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> HeadraceError:
    return HeadraceError("too_large", f"the body is over the limit of {max_bytes} bytes", field="body")


def _invalid(problem: str) -> HeadraceError:
    return HeadraceError("invalid_argument", problem, field="body")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode("utf-8")
        content = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _invalid("the body is not UTF-8") from error
    except RecursionError as error:
        raise _invalid(_TOO_DEEP) from error
    except ValueError as error:
        raise _invalid(f"the body is not valid JSON: {error}") from error
    if nests_too_deep(text, content):
        raise _invalid(_TOO_DEEP)
    if not isinstance(content, dict):
        raise _invalid("the body must be a JSON object")
    if (place := place_of_lone_surrogate(text, content)) is not None:
        raise invalid(place or "body", "the text has a lone surrogate, which is no character")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
