"""A pytest plugin: how many seconds the tests of each area took, against what the area may take.

Seconds are summed over set-up, call and tear-down of every test, so they do not depend on how many processes ran.
An area over its budget is a warning at the end of the run; one over twice its budget fails the run.
"""

from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import PurePosixPath

import pytest

BUDGETS_S: Mapping[str, float] = {
    "foundation": 150,
    "engine": 160,
    "gpu": 150,
    "contract": 160,
    "routing": 140,
    "policy": 100,
    "operations": 180,
    "simulator": 50,
    "split": 60,
    "deployment": 60,
}

# The longest matching path decides. A line may name a directory or one file.
AREA_OF_PATH: Mapping[str, str] = {
    "tests": "foundation",
    "tests/contract": "contract",
    "tests/unit/conformance": "contract",
    "tests/unit/gateway": "contract",
    "tests/unit/policy": "policy",
    "tests/unit/router": "routing",
    "tests/unit/controlplane": "operations",
    "tests/unit/bench": "operations",
    "tests/unit/sim": "simulator",
    "tests/unit/workload": "simulator",
    "tests/integration/platform/http": "contract",
    "tests/integration/platform/test_audit.py": "operations",
    "tests/integration/platform/test_bench.py": "operations",
    "tests/integration/platform/test_books.py": "policy",
    "tests/integration/platform/test_commands.py": "operations",
    "tests/integration/platform/test_cost.py": "operations",
    "tests/integration/platform/test_guarded_streams.py": "policy",
    "tests/integration/platform/test_outage.py": "routing",
    "tests/integration/platform/test_rollout.py": "routing",
    "tests/integration/platform/test_screened_streams.py": "policy",
    "tests/integration/platform/test_stopped_worker.py": "routing",
    "tests/integration/platform/test_tenants.py": "policy",
    "tests/integration/platform/test_traces.py": "operations",
    "tests/integration/platform/test_up_gives_up.py": "operations",
    "tests/integration/test_autoscaling.py": "simulator",
    "tests/integration/test_policy_process.py": "policy",
    "tests/integration/test_hand_off.py": "split",
    "tests/integration/test_hand_off_faults.py": "split",
    "tests/integration/test_hand_off_groups.py": "split",
    "tests/integration/test_hand_off_kills.py": "split",
    "tests/integration/test_worker_agent.py": "engine",
    "tests/integration/test_worker_faults.py": "engine",
    "tests/integration/test_worker_group.py": "gpu",
    "tests/integration/test_controlplane.py": "operations",
    "tests/integration/test_router.py": "routing",
    "tests/integration/test_router_prefix.py": "routing",
    "tests/integration/test_worker_record.py": "engine",
    "tests/integration/test_worker_soak.py": "engine",
    "tests/integration/test_worker_streams.py": "engine",
    "tests/integration/test_worker_torch.py": "engine",
    "tests/unit/worker": "engine",
    "tests/unit/worker/transfer": "split",
    "tests/gpu": "gpu",
    "tests/unit/worker/kernels": "gpu",
    "tests/unit/worker/parallel": "gpu",
    "tests/unit/worker/quant": "gpu",
    "tests/compose": "deployment",
    "tests/deploy": "deployment",
}


def area_of(path: str) -> str:
    """The area of a test file, its path relative to the repository."""
    file = PurePosixPath(path)
    for candidate in (file, *file.parents):
        area = AREA_OF_PATH.get(str(candidate))
        if area is not None:
            return area
    return AREA_OF_PATH["tests"]


class AreaBudgets:
    """Collects the seconds of each area as reports come in; knows nothing about what a test tests."""

    def __init__(self, budgets_s: Mapping[str, float] = BUDGETS_S) -> None:
        self._budgets_s = budgets_s
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[area_of(report.nodeid.partition("::")[0])] += report.duration

    @property
    def broken(self) -> list[str]:
        """Areas that took more than twice their budget."""
        return [area for area, spent_s in self._seconds.items() if spent_s > 2 * self._budgets_s[area]]

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        yield
        if self.broken and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds per area")
        for area, budget_s in self._budgets_s.items():
            if area in self._seconds:
                verdict, colour = self._verdict(area)
                line = f"{area:<12}{self._seconds[area]:>8.1f} of {budget_s:>4.0f} s  {verdict}".rstrip()
                terminalreporter.write_line(line, **{colour: True})

    def _verdict(self, area: str) -> tuple[str, str]:
        spent_s, budget_s = self._seconds[area], self._budgets_s[area]
        if spent_s > 2 * budget_s:
            return "FAILURE: more than twice its budget", "red"
        if spent_s > budget_s:
            return "WARNING: over its budget", "yellow"
        return "", "green"
