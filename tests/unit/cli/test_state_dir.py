"""Where a platform's files lie, and who holds it."""

import fcntl
import os
from pathlib import Path

import pytest

from headrace_cli.platform.state_dir import (
    GATEWAY_GRPC,
    GATEWAY_HTTP,
    SERVICES,
    CommandError,
    StateDir,
    assign_addresses,
)


def test_flag_then_environment_then_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_STATE_DIR", raising=False)
    assert StateDir.resolve(None).root == tmp_path / "headrace"
    monkeypatch.setenv("HEADRACE_STATE_DIR", "/b")
    assert StateDir.resolve(None).root == Path("/b")
    assert StateDir.resolve("/a").root == Path("/a")


def test_addresses_are_kept_and_only_the_default_platform_has_fixed_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    other, default = StateDir(tmp_path / "other"), StateDir.resolve(str(tmp_path / "home/headrace"))
    first = assign_addresses(other)
    assert assign_addresses(other) == first and set(first) == set(SERVICES)
    ports = [address for entry in first.values() for address in entry.values()]
    assert len(set(ports)) == len(ports)
    assert GATEWAY_HTTP not in ports
    fixed = assign_addresses(default)["gateway"]
    assert (fixed["public_http"], fixed["public_grpc"]) == (GATEWAY_HTTP, GATEWAY_GRPC)


def test_the_service_token_is_the_owners_alone(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    state.prepare()
    token = state.service_token.read_text()
    assert len(token) > 30 and state.service_token.stat().st_mode & 0o777 == 0o600
    state.service_token.chmod(0o644)
    state.root.chmod(0o755)
    state.prepare()
    assert state.service_token.read_text() == token
    assert state.service_token.stat().st_mode & 0o777 == 0o600 and state.root.stat().st_mode & 0o777 == 0o700


def test_an_empty_flag_is_no_default() -> None:
    with pytest.raises(CommandError, match="--state-dir"):
        StateDir.resolve("")


def test_a_long_path_moves_the_socket_elsewhere(tmp_path: Path) -> None:
    assert StateDir(tmp_path).redis_socket.parent == tmp_path / "services/redis"
    long = StateDir(tmp_path / ("x" * 120))
    assert len(str(long.redis_socket)) < 108
    assert long.redis_socket != StateDir(tmp_path / ("y" * 120)).redis_socket


def test_only_a_held_lock_is_a_running_supervisor(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.supervisor_pid() is None
    state.lock.write_text(str(os.getpid()))
    assert state.supervisor_pid() is None
    with state.lock.open("r") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert state.supervisor_pid() == os.getpid()


def test_a_missing_secret_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="headrace up"):
        StateDir(tmp_path).read_secret(tmp_path / "api-key")


def test_a_place_that_can_be_no_directory_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = StateDir(tmp_path / "file" / "state")
    assert state.supervisor_pid() is None
    assert state.announced("gateway") is None
    with pytest.raises(CommandError, match="cannot make the state directory"):
        state.prepare()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"gateway": 5}', '{"gateway": {"http": 5}}', '{"gateway": {"http": "x"}}']
)
def test_damaged_addresses_are_said_to_be_so(tmp_path: Path, text: str) -> None:
    state = StateDir(tmp_path)
    state.addresses.write_text(text)
    with pytest.raises(CommandError, match=r"addresses\.json is damaged: delete it"):
        assign_addresses(state)
