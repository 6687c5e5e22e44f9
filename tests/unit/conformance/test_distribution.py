"""The kit is installed alone: against a foreign server it needs nothing of ours."""

import subprocess
import sys

from tests.integration.clean_environment import SOURCES, closure

OURS_AFTER_IMPORT = """
import sys
from headrace_conformance.rules.catalog import chosen_rules
chosen_rules(grpc=False, control=True, only=[])
print([name for name in sys.modules if name.partition(".")[0] in ("headrace", "grpc", "headrace_kit")])
"""


def test_it_requires_nothing_of_ours_but_the_contract_for_grpc() -> None:
    ours = set(SOURCES) - {"headrace-conformance"}
    assert not ours & closure("headrace-conformance").keys()
    assert ours & closure("headrace-conformance", frozenset({"grpc"})).keys() == {"headrace-protos"}


def test_without_grpc_no_stub_is_imported() -> None:
    command = [sys.executable, "-c", OURS_AFTER_IMPORT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"
