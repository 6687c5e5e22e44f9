"""`make install` takes a Python that runs and fits; anything else is one clear sentence."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.clean_environment import SOURCES

LAST = (
    "headrace-worker",
    "headrace-workload",
    "headrace-bench",
    "headrace-cli",
    "headrace-conformance",
    "headrace-sim",
)
SCRIPT = Path(__file__).parents[3] / "tools/install.sh"

BROKEN_SHIM = "echo 'python3.12: command not found' >&2; exit 127"
OTHER_VERSION = "exit 1"
NONE_FOUND = "Python 3.12 or 3.11 is needed and none was found; PYTHON=... names one"
NO_VENV = "python3.12 has no venv module; on Debian and Ubuntu: apt-get install python3.12-venv"
# Runs, and its version fits, but it cannot import venv.
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac'
# Fits; makes an environment whose python writes down how it is called.
WORKING = """
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin
printf '#!/usr/bin/env bash\\n[ "$2" != pip ] || echo "$*" >> pip.log\\n' > .venv/bin/python
chmod +x .venv/bin/python
"""
# Fits; then stands for python -m venv and fails there, which is as far as these tests go.
USABLE = 'case "$1" in -c) exit 0;; --version) echo Python 3.x from "$(basename "$0")";; *) exit 9;; esac'


def install(folder: Path, commands: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "tools").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(SCRIPT, folder / "tools/install.sh")
    for tool in ("bash", "basename", "chmod", "dirname", "env", "mkdir", "rm", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (folder / "bin" / tool).symlink_to(found)
    for name, body in commands.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    return subprocess.run(
        [folder / "bin/bash", folder / "tools/install.sh"],
        env={"PATH": str(folder / "bin"), **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("commands", "environment", "sentence"),
    [
        ({}, {}, NONE_FOUND),
        ({"python3.12": BROKEN_SHIM, "python3": OTHER_VERSION}, {}, NONE_FOUND),
        ({"python3.12": WITHOUT_VENV}, {}, NO_VENV),
        (
            {"mine": OTHER_VERSION, "python3.12": USABLE},
            {"PYTHON": "mine"},
            "PYTHON=mine is not a Python 3.12 or 3.11 that runs",
        ),
    ],
)
def test_a_python_that_does_not_do_is_one_sentence(
    tmp_path: Path, commands: dict[str, str], environment: dict[str, str], sentence: str
) -> None:
    result = install(tmp_path, commands, **environment)
    assert result.returncode == 1
    assert result.stderr == f"make install: {sentence}\n"


@pytest.mark.parametrize(
    ("commands", "chosen"),
    [
        ({"python3.12": USABLE, "python3.11": USABLE}, "python3.12"),
        ({"python3.12": BROKEN_SHIM, "python3.11": USABLE}, "python3.11"),
        ({"python3.12": WITHOUT_VENV, "python3.11": USABLE}, "python3.11"),
        ({"python3": USABLE}, "python3"),
    ],
)
def test_the_first_that_runs_and_has_venv_is_taken(tmp_path: Path, commands: dict[str, str], chosen: str) -> None:
    result = install(tmp_path, commands)
    assert result.stdout == f"creating .venv with Python 3.x from {chosen}\n"


def test_build_tools_come_first_and_then_everything_in_one_locked_install(tmp_path: Path) -> None:
    result = install(tmp_path, {"python3.12": WORKING}, TORCH_INDEX="https://example.org/cpu")
    assert result.returncode == 0, result.stderr
    tools, everything = (tmp_path / "pip.log").read_text().splitlines()
    assert {"hatchling", "editables", "grpcio-tools"} <= set(tools.split())
    words = everything.split()
    assert [words[at + 1] for at, word in enumerate(words) if word == "-e"] == [
        *(f"./{source}" for name, source in SOURCES.items() if name not in LAST),
        *(
            "./services/worker[engine]",
            "./tools/workload",
            "./tools/bench",
            "./tools/cli",
            "./tools/conformance[grpc]",
            "./tools/sim",
        ),
    ]
    assert {"--no-build-isolation", "--group"} <= set(words)
    assert words[words.index("--extra-index-url") + 1] == "https://example.org/cpu"
    assert all(line.split()[line.split().index("-c") + 1] == "constraints.txt" for line in (tools, everything))
    assert (tmp_path / ".venv/.installed").exists()
