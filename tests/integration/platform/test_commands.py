"""The `headrace` command as a person uses it, on a running platform and on none."""

import json
import socket
from pathlib import Path

import pytest
import yaml

from headrace_cli.client import Client
from headrace_kit.errors import HeadraceError
from tests.integration.platform.running_platform import SCRIPTED, Platform, run_headrace, wait_until


def test_status_is_what_scripts_rely_on(platform: Platform) -> None:
    report = platform.status()
    assert set(report) == {"gateway", "api_key", "admin_key", "snapshot_version", "services"}
    assert report["gateway"] == {"http": platform.http.removeprefix("http://"), "grpc": platform.grpc}
    assert report["api_key"].startswith("hr_") and report["admin_key"] and report["snapshot_version"] >= 1
    names = [row["name"] for row in report["services"]]
    assert names[:4] == ["controlplane", "policy", "router", "gateway"] and names[4].startswith("worker/")
    assert all({"name", "grpc", "http", "pid", "ready"} <= set(row) for row in report["services"])


def test_chat_prints_one_answer(platform: Platform) -> None:
    answer = platform.headrace("chat", '["Hel","lo"]')
    assert (answer.returncode, answer.stdout) == (0, "Hello\n")
    summary = json.loads(platform.headrace("chat", "--json", "--max-tokens", "1", "hi").stdout)
    assert (summary["text"], summary["terminal"], summary["reason"]) == ("h", "incomplete", "length")
    failed = platform.headrace("chat", '["a","!err"]')
    assert failed.returncode == 1 and "engine_error" in failed.stderr and "Traceback" not in failed.stderr
    unknown = platform.headrace("chat", "--model", "nobody", "hi")
    assert unknown.returncode == 1 and "model_not_found" in unknown.stderr


def test_logs_are_json_and_have_no_key(platform: Platform) -> None:
    platform.headrace("chat", "hi")
    for service in ("gateway", "policy", "router", "controlplane", "worker"):
        text = platform.headrace("logs", service, "-n", "500").stdout
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert lines and {"ts", "level", "service", "event"} <= set(lines[-1])
        assert platform.api_key.rpartition("_")[2] not in text  # B66
    assert "nobody" in platform.headrace("logs", "nobody").stderr


def test_a_second_up_changes_nothing(platform: Platform) -> None:
    before = platform.announced("gateway")["pid"]
    again = platform.headrace("up", "--detach")
    assert again.returncode == 0 and platform.announced("gateway")["pid"] == before


@pytest.mark.parametrize("service", ["gateway", "policy", "worker"])
def test_restart_touches_one_service(platform: Platform, service: str) -> None:
    services = ("controlplane", "policy", "router", "gateway")
    before = {name: platform.announced(name)["pid"] for name in services} | {"worker": platform.worker_pids()}
    done = platform.headrace("restart", service)
    assert done.returncode == 0, done.stderr
    after = {name: platform.announced(name)["pid"] for name in services} | {"worker": platform.worker_pids()}
    assert [name for name in before if before[name] != after[name]] == [service]
    assert platform.headrace("chat", "hi").stdout == "hi\n"


def test_a_bad_fleet_file_changes_nothing(platform: Platform, tmp_path: Path) -> None:
    version = platform.status()["snapshot_version"]
    content = yaml.safe_load(SCRIPTED.read_text())
    content["pools"]["scripted"]["min"] = "two"
    content["nonsense"] = 1
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(content))
    refused = platform.headrace("fleet", "apply", str(bad))
    assert refused.returncode == 1
    assert "pools.scripted.min" in refused.stderr and "nonsense" in refused.stderr
    assert platform.status()["snapshot_version"] == version


def test_fleet_versions_can_be_compared_and_rolled_back(platform: Platform, tmp_path: Path) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(SCRIPTED.read_text().replace("dev: {}", "dev: {}\n  acme: {weight: 2}"))
    before = platform.status()["snapshot_version"]
    diff = platform.headrace("fleet", "diff", str(changed))
    assert diff.returncode == 1 and "acme" in diff.stdout
    assert platform.headrace("fleet", "apply", str(changed), "--comment", "one more").returncode == 0
    assert "acme" in platform.headrace("fleet", "show").stdout
    assert "one more" in platform.headrace("fleet", "history").stdout
    assert platform.headrace("fleet", "rollback", str(before)).returncode == 0
    assert "acme" not in platform.headrace("fleet", "show").stdout


def test_keys_are_made_used_and_revoked(platform: Platform) -> None:
    key = platform.headrace("keys", "create", "dev").stdout.strip()
    key_id = key.split("_")[1]

    def refused() -> str:
        with Client(platform.grpc, api_key=key) as client:
            try:
                client.models()
            except HeadraceError as error:
                return error.reason
        return ""

    wait_until(lambda: refused() == "", "the key is known")
    listed = platform.headrace("keys", "list").stdout
    assert key_id in listed and key.rpartition("_")[2] not in listed
    assert platform.headrace("keys", "revoke", key_id).returncode == 0
    wait_until(lambda: refused() == "unauthenticated", "the key is refused")


def test_nothing_runs_where_nothing_was_started(tmp_path: Path) -> None:
    for words in (("status",), ("chat", "hi"), ("fleet", "show"), ("restart", "gateway")):
        result = run_headrace(tmp_path, *words)
        assert result.returncode == 1 and "headrace up" in result.stderr and "Traceback" not in result.stderr
    assert run_headrace(tmp_path, "down").returncode == 0


def test_a_taken_port_is_one_clear_sentence(tmp_path: Path) -> None:
    state = tmp_path / "platform"
    state.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (state / "addresses.json").write_text(json.dumps({"gateway": {"public_http": address}}))
        result = run_headrace(state, "up", "--detach", "--fleet", str(SCRIPTED), "--timeout", "30")
    assert result.returncode == 1
    assert f"cannot listen on {address}" in result.stderr and "Traceback" not in result.stderr
    assert run_headrace(state, "status").returncode == 1


def test_a_fleet_file_that_is_wrong_from_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("models: {m: {source: 5}}\npools: {a: {model: nobody, min: two}}\n")
    result = run_headrace(tmp_path / "platform", "up", "--detach", "--fleet", str(bad), "--timeout", "30")
    assert result.returncode == 1
    assert "models.m.source" in result.stderr and "pools.a.min" in result.stderr and "Traceback" not in result.stderr
