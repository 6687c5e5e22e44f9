"""Certificates: what they prove, who may read them, and that signing again changes nothing that is in use."""

import datetime
import stat
import tomllib
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from headrace_cli.__main__ import main
from headrace_cli.platform.authority import Authority, BadName, Order, Pem, general_names, names_in
from headrace_cli.platform.credentials_dir import SERVICES
from headrace_kit.channels import KeyPair, Tls, connect, identity
from headrace_kit.health import Health
from headrace_kit.listeners import GrpcListener, StartError

NOW = datetime.datetime.now(datetime.UTC)
CHECK = "/grpc.health.v1.Health/Check"


def init(out: Path, *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["certs", "init", "--out", str(out), *words])
    assert ended.value.code == 0, ended.value.code


def tls(folder: Path, service: str) -> Tls:
    return Tls(folder / "ca.pem", folder / f"{service}.pem", folder / f"{service}-key.pem")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment") / "secrets"
    init(folder, "--for-containers", "--name", "llm.example.org", "--name", "192.0.2.7")
    return folder


async def call(address: str, peer: str | None, ours: Tls | None) -> bytes:
    async with connect(address, token=None, peer=peer, tls=ours) as channel:
        ask: Any = channel.unary_unary(CHECK)
        answer: bytes = await ask(b"", timeout=5)
        return answer


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_is_known_by_its_name_wherever_it_runs(folder: Path, service: str) -> None:
    listener = GrpcListener("127.0.0.1:0", Health(), token=None, tls=tls(folder, service))
    await listener.start()
    other = next(name for name in SERVICES if name != service)
    assert await call(listener.address, service, tls(folder, "router")) == b"\x08\x01"
    for peer, ours in ((other, tls(folder, "router")), (None, tls(folder, "router")), (service, None)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(listener.address, peer, ours)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await listener.stop(0)


async def test_the_public_certificate_opens_no_internal_door(folder: Path) -> None:
    listener = GrpcListener("127.0.0.1:0", Health(), token=None, tls=tls(folder, "policy"))
    await listener.start()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(listener.address, "policy", tls(folder, "public"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await listener.stop(0)


async def test_clients_need_no_certificate_and_reach_the_public_names(folder: Path) -> None:
    pair = KeyPair(folder / "public.pem", folder / "public-key.pem")
    listener = GrpcListener("127.0.0.1:0", Health(), token=None, tls=pair)
    await listener.start()
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    for name in ("", "localhost", "llm.example.org", "192.0.2.7"):
        options = [("grpc.ssl_target_name_override", name)] if name else []
        async with grpc.aio.secure_channel(listener.address, credentials, options) as channel:
            ask: Any = channel.unary_unary(CHECK)
            assert await ask(b"", timeout=5) == b"\x08\x01"
    await listener.stop(0)


def test_the_key_of_the_authority_stays_with_its_owner(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes.pop("ca-key.pem") == 0o600
    assert set(modes.values()) == {0o644}


def test_without_containers_every_file_is_its_owners(tmp_path: Path) -> None:
    init(tmp_path / "certs")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").iterdir()} == {0o600}
    assert not (tmp_path / "certs/service-token").exists()


def test_signing_again_keeps_the_authority_the_secrets_and_the_names(tmp_path: Path) -> None:
    init(tmp_path, "--for-containers", "--name", "llm.example.org")
    kept = ("ca.pem", "ca-key.pem", "service-token", "redis.conf", "policy.toml")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    init(tmp_path, "--for-containers", "--name", "other.example.org")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] == after[name]} == set(kept)
    assert {"llm.example.org", "other.example.org", "localhost", "127.0.0.1"} == set(names_in(after["public.pem"]))


async def test_peers_with_old_and_new_certificates_work_together(tmp_path: Path) -> None:
    init(tmp_path)
    old = GrpcListener("127.0.0.1:0", Health(), token=None, tls=tls(tmp_path, "worker"))
    await old.start()
    init(tmp_path)
    assert await call(old.address, "worker", tls(tmp_path, "gateway")) == b"\x08\x01"
    await old.stop(0)


def test_a_public_certificate_of_another_authority_is_kept(tmp_path: Path) -> None:
    init(tmp_path)
    theirs = Authority.create(NOW).issue(Order(["llm.example.org"], 30), NOW)
    (tmp_path / "public.pem").write_bytes(theirs.cert)
    (tmp_path / "public-key.pem").write_bytes(theirs.key)
    init(tmp_path)
    assert (tmp_path / "public.pem").read_bytes() == theirs.cert


def test_redis_and_policy_share_one_password(folder: Path) -> None:
    url = tomllib.loads((folder / "policy.toml").read_text())["redis"]
    password = url.removeprefix("redis://:").removesuffix("@redis:6379")
    assert f"requirepass {password}\n" in (folder / "redis.conf").read_text()
    assert len(password) >= 43


def test_a_certificate_ends_and_signs_nothing(folder: Path) -> None:
    cert = x509.load_pem_x509_certificate((folder / "gateway.pem").read_bytes())
    assert cert.not_valid_after_utc - NOW < datetime.timedelta(days=91)
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert names_in((folder / "gateway.pem").read_bytes()) == [identity("gateway")]


@pytest.mark.parametrize("name", ["", "a b", "https://a.example", "a.example:443", "-a", "a..b", "a" * 64, "ä.example"])
def test_a_name_that_no_certificate_can_carry_is_refused(name: str) -> None:
    with pytest.raises(BadName):
        general_names([name])


@pytest.mark.parametrize("words", [["--name", "a b"], ["--days", "0"], ["--days", "10000"]])
def test_a_bad_flag_is_one_sentence_and_writes_nothing(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit, match=f"headrace: {words[0]}: "):
        main(["certs", "init", "--out", str(tmp_path / "out"), *words])
    assert not (tmp_path / "out").exists()


def test_half_an_authority_is_not_replaced(tmp_path: Path) -> None:
    init(tmp_path)
    (tmp_path / "ca-key.pem").unlink()
    with pytest.raises(SystemExit, match="cannot sign with the authority"):
        main(["certs", "init", "--out", str(tmp_path)])


def test_the_key_of_another_authority_does_not_sign(tmp_path: Path) -> None:
    mine, other = Authority.create(NOW), Authority.create(NOW)
    with pytest.raises(ValueError, match="does not belong"):
        Authority(Pem(mine.pem.cert, other.pem.key))


@pytest.mark.parametrize("wrong", ["missing", "no PEM", "not its key"])
def test_unusable_files_are_one_sentence_at_start(folder: Path, tmp_path: Path, wrong: str) -> None:
    key = tmp_path / "key.pem"
    if wrong == "no PEM":
        key.write_text("nonsense")
    elif wrong == "not its key":
        key = folder / "router-key.pem"
    with pytest.raises(StartError, match=r"cannot use certificate .*policy.pem with key") as caught:
        GrpcListener("127.0.0.1:0", Health(), token=None, tls=Tls(folder / "ca.pem", folder / "policy.pem", key))
    assert caught.value.code == 2
