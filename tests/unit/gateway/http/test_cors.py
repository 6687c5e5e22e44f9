"""Browsers: named origins may call, their preflights need no key, and nobody else sees a difference."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headrace_gateway.http.cors import Cors

ORIGINS = ["https://ours.example"]


def answer(method: str, **headers: str) -> httpx.Request:
    return httpx.Request(method, "http://x/", headers={name.replace("_", "-"): text for name, text in headers.items()})


async def call(request: httpx.Request, origins: list[str]) -> httpx.Response:
    async def ok(_: object) -> PlainTextResponse:
        return PlainTextResponse("ok", headers={"x-request-id": "r"})

    app = Cors(Starlette(routes=[Route("/", ok)]), lambda: origins)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        return await client.send(request)


async def test_a_named_origin_may_call() -> None:
    told = await call(answer("GET", origin=ORIGINS[0]), ORIGINS)
    assert told.text == "ok"
    assert told.headers["access-control-allow-origin"] == ORIGINS[0]
    assert "x-headrace-response-id" in told.headers["access-control-expose-headers"]
    assert told.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in told.headers


async def test_a_star_names_every_origin() -> None:
    told = await call(answer("GET", origin="https://theirs.example"), ["*"])
    assert told.headers["access-control-allow-origin"] == "https://theirs.example"
    preflight = answer("OPTIONS", origin="https://theirs.example", access_control_request_method="POST")
    assert (await call(preflight, ["*"])).status_code == 204


async def test_its_preflight_is_answered() -> None:
    wanted = "authorization,x-headrace-session"
    preflight = answer("OPTIONS", origin=ORIGINS[0], access_control_request_method="POST",
                       access_control_request_headers=wanted)  # fmt: skip
    told = await call(preflight, ORIGINS)
    assert told.status_code == 204
    assert told.headers["access-control-allow-headers"] == wanted


@pytest.mark.parametrize("origin", ["https://theirs.example", "https://ours.example.evil", "null", ""])
@pytest.mark.parametrize("origins", [ORIGINS, []])
async def test_all_others_see_no_difference(origin: str, origins: list[str]) -> None:
    told = await call(answer("GET", origin=origin), origins)
    assert not [name for name in told.headers if name.startswith("access-control")]
    refused = await call(answer("OPTIONS", origin=origin, access_control_request_method="POST"), origins)
    assert refused.status_code == 405


async def test_options_that_are_no_preflight_pass() -> None:
    assert (await call(answer("OPTIONS", origin=ORIGINS[0]), ORIGINS)).status_code == 405
