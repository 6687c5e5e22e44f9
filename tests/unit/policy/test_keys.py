"""API keys: which credential is whose, and what it may do. No text of an error holds anything of a credential."""

import hmac
from typing import Any

import pytest

from headrace.v1 import policy_pb2 as pb
from headrace.v1 import snapshot_pb2
from headrace_kit.errors import HeadraceError
from headrace_policy import book, identity
from tests.unit.policy.fakes import KEY, SECRET, api_key, limit, section


def who(credential: str = KEY, model: str = "", now_s: float = 1000.0, **fields: Any) -> pb.Identity:
    return identity.authenticate(book.read(section(**fields)), credential, model, now_s)


@pytest.mark.parametrize(
    "credential",
    [
        "",
        "hr_test_AAAA1112",
        "hr_other_AAAA1111",
        "hr_test_",
        "test",
        KEY + "\n",
        " " + KEY,
        "Basic dTpw",
        "hr_té_x",
        "hr_" + "a" * 10_000 + "_x",
    ],
)
def test_what_is_no_key_is_unauthenticated_and_never_echoed(credential: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        who(credential)
    assert refused.value.reason == "unauthenticated"
    assert len(credential) < 5 or credential.strip() not in str(refused.value.to_status())


@pytest.mark.parametrize("fields", [{"expires_at_s": 1000}, {"revoked": True}])
def test_an_expired_or_revoked_key_is_like_an_unknown_one(fields: dict[str, Any]) -> None:
    with pytest.raises(HeadraceError) as refused:
        who(keys=[api_key(**fields)])
    with pytest.raises(HeadraceError) as unknown:
        who("hr_nobody_x")
    assert (refused.value.reason, refused.value.message) == (unknown.value.reason, unknown.value.message)


def test_a_key_of_a_tenant_that_is_gone_is_void() -> None:
    with pytest.raises(HeadraceError) as refused:
        who(keys=[api_key(tenant="gone")])
    assert refused.value.reason == "unauthenticated"


def test_an_identity_is_kept_no_longer_than_a_revocation_may_take() -> None:
    assert who().cache_s == 1.0
    assert who(keys=[api_key(expires_at_s=1001)], now_s=1000.75).cache_s == 0.25


@pytest.mark.parametrize(
    ("of_key", "of_tenant", "allowed"),
    [([], [], ["a", "b"]), (["a"], [], ["a"]), ([], ["b"], ["b"]), (["a", "b"], ["b", "c"], ["b"]), (["a"], ["b"], [])],
)
def test_key_and_tenant_must_both_allow_a_model(of_key: list[str], of_tenant: list[str], allowed: list[str]) -> None:
    fields: dict[str, Any] = {
        "keys": [api_key(models=of_key)],
        "tenants": [snapshot_pb2.Tenant(id="acme", models=of_tenant)],
    }
    for model in ("a", "b"):
        if model in allowed:
            assert who(model=model, **fields).models == ([] if not of_key and not of_tenant else allowed)
        else:
            with pytest.raises(HeadraceError) as refused:
                who(model=model, **fields)
            assert refused.value.reason == "permission_denied"
    if not allowed:
        with pytest.raises(HeadraceError):
            who(**fields)


def test_a_key_for_something_else_may_not_ask() -> None:
    with pytest.raises(HeadraceError) as refused:
        who(keys=[api_key(scopes=["billing"])])
    assert refused.value.reason == "permission_denied"


def test_the_class_is_the_keys_else_the_tenants_else_the_default() -> None:
    tenants = [snapshot_pb2.Tenant(id="acme", slo_class="batch", weight=2.5)]
    assert who().slo_class == "standard"
    assert who(tenants=tenants).slo_class == "batch"
    assert who(tenants=tenants, keys=[api_key(slo_class="fast")]).slo_class == "fast"
    assert who(tenants=tenants).weight == 2.5


def test_tenants_have_digests_of_their_own_that_do_not_show_their_names() -> None:
    tenants = [snapshot_pb2.Tenant(id=name) for name in ("acme", "other")]
    keys = [api_key(), api_key("hr_second_x"), api_key("hr_third_x", tenant="other")]
    found = [who(key, tenants=tenants, keys=keys) for key in (KEY, "hr_second_x", "hr_third_x")]
    assert found[0].tenant_digest == found[1].tenant_digest != found[2].tenant_digest
    assert found[0].fair_key == found[1].fair_key != found[2].fair_key
    assert b"acme" not in found[0].tenant_digest and "acme" not in found[0].fair_key


def test_the_hash_is_that_of_the_whole_key() -> None:
    row = snapshot_pb2.ApiKey(key_id="test", hash=hmac.digest(SECRET, b"AAAA1111", "sha256"), tenant="acme")
    with pytest.raises(HeadraceError):
        who(keys=[row])


@pytest.mark.parametrize(
    "broken",
    [
        {"key_secret": b""},
        {"keys": [api_key(), api_key()]},
        {"keys": [snapshot_pb2.ApiKey(key_id="x", hash=b"short", tenant="acme")]},
        {"tenants": [snapshot_pb2.Tenant(id="a{b}")]},
        {"tenants": [snapshot_pb2.Tenant(id="acme", limits=[limit("no_such", 1)])]},
        {"tenants": [snapshot_pb2.Tenant(id="acme", limits=[limit("rpm", float("nan"))])]},
        {"tenants": [snapshot_pb2.Tenant(id="acme", limits=[limit("rpm", 1, "galaxy")])]},
    ],
)
def test_a_broken_section_is_refused_whole(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        book.read(section(**broken))
