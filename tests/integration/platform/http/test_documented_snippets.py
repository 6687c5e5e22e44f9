"""Every Python snippet of the pages for clients runs as it stands, but for where the gateway is and who calls."""

import os
import re
import subprocess
import sys

import pytest

from tests.integration.platform.running_platform import ROOT, Platform

PAGES = ("README.md", "docs/api.md", "docs/from-openai.md")
_HOME_KEY = '(Path.home() / ".local/state/headrace/api-key")'


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page: str, platform: Platform) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL))
    assert code, f"{page} has no snippet"
    places = {
        "http://127.0.0.1:8080": platform.http,
        "127.0.0.1:8081": platform.grpc,
        '"hr_…"': repr(platform.api_key),
        _HOME_KEY: f"Path({str(platform.state_dir / 'api-key')!r})",
        "smollm2-135m-instruct": "scripted",
    }
    for written, here in places.items():
        code = code.replace(written, here)
    environ = {**os.environ, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout
