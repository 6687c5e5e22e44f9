"""Who is calling: a credential and the book become an identity. The credential goes nowhere from here."""

import hmac

from headrace.v1 import policy_pb2
from headrace_kit.errors import HeadraceError
from headrace_policy import keys
from headrace_policy.book import Book, Tenant
from headrace_policy.jwt_identity import Issuer, is_token, verify
from headrace_policy.keys import Key

CACHE_S = 1.0
"""A revoked key is refused within 2 s: this, and the time that a snapshot travels."""
_INFERENCE = "inference"


def authenticate(
    book: Book, credential: str, model: str, now_s: float, issuer: Issuer | None = None
) -> policy_pb2.Identity:
    """Raises unauthenticated, permission_denied, or policy_unavailable before the first snapshot.

    No text of theirs holds anything of the credential.
    """
    if not book.secret:
        raise HeadraceError("policy_unavailable", "policy has just started and knows no key yet", retry_after_s=1.0)
    if issuer is not None and is_token(credential):
        token = verify(credential, issuer)
        if token.tenant not in book.tenants:
            raise HeadraceError("unauthenticated", "the token is not accepted: its tenant is not known here")
        return describe(book, token, model, now_s)
    key = keys.find(credential, book.keys, book.secret, now_s)
    if key is None:
        raise HeadraceError("unauthenticated", "the API key is malformed, unknown, expired or revoked")
    return describe(book, key, model, now_s)


def describe(book: Book, key: Key, model: str, now_s: float) -> policy_pb2.Identity:
    """The identity of a valid key; raises permission_denied."""
    tenant = book.tenants[key.tenant]
    scopes = key.scopes or (_INFERENCE,)
    if _INFERENCE not in scopes:
        raise HeadraceError("permission_denied", "this API key may not be used for inference")
    models = _models(key, tenant)
    if models is not None and (not models or (model and model not in models)):
        raise HeadraceError("permission_denied", "this API key may not use this model", field="model")
    digest = hmac.digest(book.secret, b"tenant\0" + tenant.name.encode(), "sha256")[:16]
    left_s = key.expires_at_s - now_s if key.expires_at_s else CACHE_S
    return policy_pb2.Identity(
        tenant=tenant.name,
        project=key.project,
        key_id=key.key_id,
        slo_class=key.slo_class or tenant.slo_class or book.default_slo_class,
        weight=tenant.weight,
        scopes=scopes,
        fair_key=digest.hex(),
        tenant_digest=digest,
        sharing_group=tenant.sharing_group,
        models=sorted(models or ()),
        screen_input=tenant.rules.reads_input,
        cache_s=max(0.0, min(CACHE_S, left_s)),
    )


def _models(key: Key, tenant: Tenant) -> frozenset[str] | None:
    """What both allow; None = all."""
    if key.models and tenant.models:
        return key.models & tenant.models
    return key.models or tenant.models or None
