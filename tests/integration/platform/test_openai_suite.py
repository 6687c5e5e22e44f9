"""openai-python's own tests of the surfaces that we serve, from its source distribution, against a running platform.

They are generated from OpenAI's own description and written for a mock that answers anything, so some ask for what we
refuse by name or do not have: each of those is listed with the reason. (Those named path_params try the client alone.)
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.integration.platform.running_platform import SCRIPTED, running_platform

pytestmark = pytest.mark.slow

FILES = [
    "tests/api_resources/test_completions.py",
    "tests/api_resources/test_models.py",
    "tests/api_resources/test_responses.py",
    "tests/api_resources/responses",
    "tests/api_resources/chat",
]
NOT_RUN = {
    r"\[aiohttp\]": "needs another HTTP client than the one that people get",
    r"api_resources/test_completions\.py.*with_all_params": "echo and suffix are not served",
    r"chat/test_completions\.py.*create_with_all_params": "audio, functions and web_search_options are not served",
    r"chat/test_completions\.py.*(method|response)_(retrieve|update|list|delete)": "completions are not stored",
    r"chat/completions/test_messages\.py.*(method|response)_list": "completions are not stored",
    r"test_models\.py.*(method|response)_delete": "models belong to the fleet; no client deletes one",
    r"test_responses\.py.*(method|response)_(retrieve|delete|cancel)": "responses are not stored",
    r"test_responses\.py.*_compact": "responses are not stored",
    r"test_responses\.py.*create_with_all_params": "background and conversation are not served",
    r"test_responses\.py.*_create_overload": "they name no model, and model is required",
    r"test_input_items\.py.*(method|response)_list": "responses are not stored",
    r"test_input_tokens\.py": "they name no model, and model is required",
}
MODELS = ("gpt-6-astra", "gpt-3.5-turbo-instruct", "model")


def unpack(folder: Path) -> Path:
    """The source distribution of the installed client, from the registry that pip is set to."""
    version = importlib.metadata.version("openai")
    wanted = ["--no-deps", "--no-binary", "openai", f"openai=={version}"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--dest", str(folder), *wanted]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    with tarfile.open(folder / f"openai-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"openai-{version}"


def run(source: Path, *words: str, base_url: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--no-header", "-p", "no:cacheprovider", *words]
    environ = {**os.environ, "TEST_API_BASE_URL": base_url, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, timeout=600, check=False)


def test_the_clients_own_tests_pass(tmp_path: Path) -> None:
    source = unpack(tmp_path)
    collected = [line for line in run(source, "--collect-only", *FILES).stdout.splitlines() if "::" in line]
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, test) for test in collected)]
    assert not unused, "a reason without a test is none"
    chosen = [test for test in collected if not any(re.search(pattern, test) for pattern in NOT_RUN)]
    fleet = tmp_path / "fleet.yaml"
    aliases = f"source: scripted\n    aliases: [{', '.join(MODELS)}]"
    fleet.write_text(SCRIPTED.read_text().replace("source: scripted", aliases))
    with running_platform(tmp_path / "platform", fleet) as platform:
        conftest = source / "tests/conftest.py"
        conftest.write_text(conftest.read_text().replace("My API Key", platform.api_key))
        result = run(source, "--tb=line", *chosen, base_url=f"{platform.http}/v1")
    summary = result.stdout.splitlines()[-1]
    passed = re.match(r"(\d+) passed in", summary)
    assert passed is not None, result.stdout[-3000:]
    assert int(passed.group(1)) == len(chosen) >= 80
