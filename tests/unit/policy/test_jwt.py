"""Tokens of an issuer whose keys are fetched over HTTP: what is accepted, what is not, and an issuer that is away."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from headrace.v1 import policy_pb2 as pb
from headrace_kit.errors import HeadraceError
from headrace_policy import book, identity
from headrace_policy.jwks import Jwks
from headrace_policy.jwt_identity import Issuer
from tests.meters import Moved
from tests.unit.policy.fakes import KEY, section

ISSUER, AUDIENCE = "https://issuer.example", "headrace"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, algorithm: str, key_id: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key()))
    return {**row, "kid": key_id, "alg": algorithm, "use": "sig"}


def token(key: Any = RSA, algorithm: str = "RS256", key_id: str = "one", **claims: Any) -> str:
    now = time.time()
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "tenant": "acme", "exp": now + 60, **claims}
    given = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={"kid": key_id})


@pytest.fixture
def server() -> Iterator[Any]:
    """Serves ``server.keys``, or fails when they are None."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys = self.server.keys  # type: ignore[attr-defined]
            self.send_response(200 if keys is not None else 500)
            self.end_headers()
            self.wfile.write(json.dumps({"keys": keys}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    http: Any = HTTPServer(("127.0.0.1", 0), Handler)
    http.keys = [
        public(RSA, "RS256", "one"),
        public(CURVE, "ES256", "two"),
        {"kty": "oct", "kid": "x", "k": "c2VjcmV0"},
    ]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    yield http
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
async def jwks(server: Any, tmp_path: Path) -> Jwks:
    cache = Jwks(f"http://127.0.0.1:{server.server_port}/", tmp_path / "jwks.json")
    await cache.refresh()
    return cache


def who(credential: str, jwks: Jwks, model: str = "") -> pb.Identity:
    issuer = Issuer(ISSUER, AUDIENCE, "tenant", jwks.find)
    return identity.authenticate(book.read(section()), credential, model, time.time(), issuer)


async def test_a_token_becomes_an_identity(jwks: Jwks) -> None:
    got = who(token(project="blue", models=["m"], scope="inference other"), jwks, "m")
    assert (got.tenant, got.project, got.key_id, list(got.models)) == ("acme", "blue", "jwt:alice", ["m"])
    assert 0 < got.cache_s <= 1.0
    assert who(token(CURVE, "ES256", "two"), jwks).tenant == "acme"
    assert who(KEY, jwks).key_id == "test", "our own keys go on working"


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": time.time() - 3600},
        {"nbf": time.time() + 3600},
        {"aud": "other"},
        {"iss": "https://other.example"},
        {"tenant": None},
        {"tenant": "nobody"},
        {"tenant": 7},
        {"sub": None},
        {"exp": None},
        {"models": {"m": 1}},
    ],
)
async def test_a_token_that_is_not_for_us_is_refused_and_not_echoed(jwks: Jwks, claims: dict[str, Any]) -> None:
    credential = token(**claims)
    with pytest.raises(HeadraceError) as refused:
        who(credential, jwks)
    assert refused.value.reason == "unauthenticated"
    assert not [part for part in credential.split(".") if part in str(refused.value.to_status())]


async def test_a_token_for_something_else_may_not_ask(jwks: Jwks) -> None:
    for claims, model in (({"scope": "billing"}, ""), ({"models": ["m"]}, "other")):
        with pytest.raises(HeadraceError) as refused:
            who(token(**claims), jwks, model)
        assert refused.value.reason == "permission_denied"


async def test_forged_tokens_are_refused(jwks: Jwks) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    unsigned = jwt.encode(
        {"iss": ISSUER, "aud": AUDIENCE, "sub": "a", "tenant": "acme", "exp": time.time() + 60},
        "",
        "none",
        headers={"kid": "one"},
    )
    shared = token(b"secret" * 8, "HS256", "x")
    confused = token(b"k" * 64, "HS256", "one")
    changed = token()[:-8] + "AAAAAAAA"
    for credential in (token(other), unsigned, shared, confused, changed, token(key_id="three"), "eyJ.a.b"):
        with pytest.raises(HeadraceError) as refused:
            who(credential, jwks)
        assert refused.value.reason == "unauthenticated"


async def test_a_new_key_is_fetched_and_an_issuer_that_is_away_changes_nothing(server: Any, jwks: Jwks) -> None:
    new = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(HeadraceError):
        who(token(new, "ES256", "new"), jwks)
    assert jwks._wanted.is_set()
    server.keys = [*server.keys, public(new, "ES256", "new")]
    await jwks.refresh()
    assert who(token(new, "ES256", "new"), jwks).tenant == "acme"
    failed = Moved("jwks_failures_total")
    for broken in (None, [], [{"kid": "one"}]):
        server.keys = broken
        await jwks.refresh()
        assert who(token(), jwks).tenant == "acme"
    assert failed() == 3


async def test_the_last_good_keys_are_there_after_a_restart(jwks: Jwks) -> None:
    successor = Jwks("http://127.0.0.1:9/", jwks._path)
    await successor._start_from_disk()
    assert who(token(), successor).tenant == "acme"
