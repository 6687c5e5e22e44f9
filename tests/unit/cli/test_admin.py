"""What the command says when its control plane says nothing."""

import asyncio
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.v1 import fleet_pb2
from headrace_cli.platform.admin import Admin, ControlPlaneAway
from headrace_cli.platform.state_dir import StateDir


@pytest.fixture
def closed(tmp_path: Path) -> StateDir:
    """Of a platform whose control plane is being restarted: nobody listens at its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("token", "admin"):
        (tmp_path / name).write_text("secret")
    files = f'service_token_file = "{tmp_path}/token"\nadmin_key_file = "{tmp_path}/admin"\n'
    (tmp_path / "remote.toml").write_text(f'controlplane = "127.0.0.1:{port}"\n{files}')
    return StateDir(tmp_path)


async def _call(admin: Admin) -> None:
    await admin.call(admin.stub.Audit, fleet_pb2.AuditRequest(), 5.0)


async def _stream(admin: Admin) -> None:
    async for _ in admin.stream(admin.stub.ListMetrics, fleet_pb2.ListMetricsRequest(), 5.0):
        raise AssertionError("nobody is there")


@pytest.mark.parametrize("ask", [_call, _stream])
def test_a_control_plane_that_is_away_is_unavailable_and_no_error_of_ours(closed: StateDir, ask: Any) -> None:
    async def main() -> None:
        async with Admin(closed) as admin:
            work: Coroutine[Any, Any, None] = ask(admin)
            await work

    with pytest.raises(ControlPlaneAway) as away:
        asyncio.run(main())
    assert str(away.value).startswith("unavailable: the control plane at 127.0.0.1:")
    assert "internal" not in str(away.value) and "headrace status" in str(away.value)
