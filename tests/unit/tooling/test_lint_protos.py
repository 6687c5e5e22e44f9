"""`tools/lint_protos.sh` compares the contract with main's, and says when there is nothing to compare with."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTO = """syntax = "proto3";
// A package.
package headrace.v1;
// A message.
message Load {
  // A field.
  uint32 num_waiting = 1;
}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/lint_protos.sh", tmp_path / "tools")
    (tmp_path / "protos/headrace/v1").mkdir(parents=True)
    shutil.copy(ROOT / "protos/buf.yaml", tmp_path / "protos")
    write(tmp_path, PROTO)
    return tmp_path


def write(repository: Path, proto: str) -> None:
    (repository / "protos/headrace/v1/load.proto").write_text(proto)


def commit(repository: Path, branch: str) -> None:
    for command in (
        ["init", "-q", "-b", branch],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "Start"],
    ):
        subprocess.run(["git", "-C", repository, *command], check=True)


def lint(repository: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repository / "tools/lint_protos.sh"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_without_main_the_comparison_is_skipped_with_a_reason(repository: Path) -> None:
    commit(repository, "other")
    result = lint(repository)
    assert (result.returncode, "skipped, there is no main branch" in result.stdout) == (0, True), result.stdout


def test_a_changed_type_breaks_and_a_new_field_does_not(repository: Path) -> None:
    commit(repository, "main")
    write(repository, PROTO.replace("uint32", "uint64"))
    changed = lint(repository)
    assert changed.returncode != 0
    assert 'changed type from "uint32" to "uint64"' in changed.stdout

    write(repository, PROTO.replace("}", "  // Another.\n  uint32 num_running = 2;\n}"))
    assert lint(repository).returncode == 0


def test_a_field_without_a_comment_is_refused(repository: Path) -> None:
    commit(repository, "main")
    write(repository, PROTO.replace("// A field.", ""))
    result = lint(repository)
    assert result.returncode != 0
    assert "num_waiting" in result.stdout
