"""Who a JSON Web Token says is calling: signature, issuer, audience and time are checked, then its claims are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jwt
from jwt import PyJWK

from headrace_kit.errors import HeadraceError
from headrace_policy.keys import Key

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_S = 30.0
_MAX_CHARS = 16_384
_MAX_SUBJECT = 128


@dataclass(frozen=True)
class Issuer:
    """Whose tokens are taken; ``find`` gives its public key by id. ``tenant_claim`` names our tenant."""

    name: str
    audience: str
    tenant_claim: str
    find: Callable[[str], PyJWK | None]


def is_token(credential: str) -> bool:
    """Whether it looks like a token and not like one of our keys."""
    return credential.count(".") == 2 and credential.startswith("eyJ")


def verify(credential: str, issuer: Issuer) -> Key:
    """The token as a key without a hash; raises unauthenticated, and no text of it holds any of the token."""
    try:
        if len(credential) > _MAX_CHARS:
            raise _refused("it is too long")
        header = jwt.get_unverified_header(credential)
        key = issuer.find(str(header.get("kid", "")))
        if key is None:
            raise _refused("its key id is unknown")
        if key.algorithm_name not in ALGORITHMS:
            raise _refused("its algorithm is not allowed")
        claims: dict[str, Any] = jwt.decode(
            credential,
            key,
            algorithms=[key.algorithm_name],
            audience=issuer.audience,
            issuer=issuer.name,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
    except jwt.PyJWTError as error:
        raise _refused(_REASONS.get(type(error), "it is malformed or not signed by its issuer")) from None
    return _key(claims, issuer)


_REASONS = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.MissingRequiredClaimError: "a claim is missing",
}


def _key(claims: dict[str, Any], issuer: Issuer) -> Key:
    tenant, subject = claims.get(issuer.tenant_claim), claims["sub"]
    if not isinstance(tenant, str) or not tenant or not isinstance(subject, str) or not subject:
        raise _refused("it names no tenant or no subject")
    return Key(
        key_id=f"jwt:{subject[:_MAX_SUBJECT]}",
        hash=b"",
        tenant=tenant,
        project=claims["project"] if isinstance(claims.get("project"), str) else "",
        models=frozenset(_words(claims, "models")),
        expires_at_s=int(claims["exp"]),
        revoked=False,
        slo_class=claims["slo_class"] if isinstance(claims.get("slo_class"), str) else "",
        scopes=tuple(_words(claims, "scope")),
        limits=(),
    )


def _words(claims: dict[str, Any], name: str) -> list[str]:
    """A list of texts, or one text of words (RFC 8693, section 4.2). Anything else is no permission: refused."""
    value = claims.get(name, [])
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise _refused(f"its claim {name} is not a list of texts")
    return words


def _refused(why: str) -> HeadraceError:
    return HeadraceError("unauthenticated", f"the token is not accepted: {why}")
