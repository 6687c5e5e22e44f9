"""Credentials are found and never shown; what this repository holds is none."""

import secrets
import subprocess
from pathlib import Path

import pytest

from tools import secret_scan
from tools.secret_scan import ALLOWED, ROOT, findings, scan

RANDOM = "9fQ2xLr7VbT0kZ3mYw8NcJ5hGd1sPa6E"
# In pieces, so that the scan does not find them here.
SECRETS = {
    "private key": "-----BEGIN " + "EC PRIVATE KEY-----\n" + RANDOM * 2,
    "cloud access key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "repository token": "ghp_" + RANDOM + "abcd",
    "package index token": "pypi-" + RANDOM * 2,
    "model hub token": "hf_" + RANDOM,
    "API key": "sk-" + "proj-" + RANDOM,
    "key of ours": "hr_" + "abcd1234_" + secrets.token_urlsafe(32),
    "password in a URL": "redis://:" + RANDOM + "@redis:6379",
    "assigned secret": 'service_token = "' + RANDOM + '"',
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_found_with_its_line(kind: str) -> None:
    assert (3, kind) in list(findings(f"first\nsecond\n{SECRETS[kind]}\n"))


@pytest.mark.parametrize(
    "text",
    [
        'token = "service-token-of-the-tests"',
        'api_key = os.environ["OPENAI_API_KEY"]',
        "redis://:{password}@redis:6379",
        'service_token_file = "/run/secrets/service-token"',
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_what_only_names_a_secret_is_none(text: str) -> None:
    assert list(findings(text)) == []


def test_a_tracked_file_is_reported_without_its_value(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "tracked.toml").write_text(SECRETS["assigned secret"])
    (tmp_path / "untracked.toml").write_text(SECRETS["assigned secret"])
    subprocess.run(["git", "add", "tracked.toml"], cwd=tmp_path, check=True)
    assert scan(tmp_path) == ["tracked.toml:1: looks like a secret: assigned secret"]


def test_this_repository_holds_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        secret_scan.main()
    assert done.value.code == 0, capsys.readouterr().err


def test_every_exception_is_still_needed() -> None:
    assert [name for name in ALLOWED if not list(findings((ROOT / name).read_text()))] == []
