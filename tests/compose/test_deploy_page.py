"""docs/deploy.md does what it says: its `sh` blocks are run as they stand, in their order, in one shell."""

import re
from pathlib import Path

import pytest

from tests.compose.stack import BUILD_S, Stack

pytestmark = pytest.mark.compose

PAGE = Path(__file__).parents[2] / "docs/deploy.md"


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_cpu_profile_do_what_the_page_says(empty_stack: Stack) -> None:
    found = blocks()
    assert len(found) == 7, "every block of the page is one that is run here"
    output = empty_stack.run("bash", "-euo", "pipefail", "-c", "\n".join(found), timeout_s=2 * BUILD_S)
    assert "Paris" in output
    assert output.count('"smollm2-135m-instruct"') >= 3, "the models were listed with each key, and after restoring"
    assert empty_stack.compose("ps", "--all", "--quiet") == ""
