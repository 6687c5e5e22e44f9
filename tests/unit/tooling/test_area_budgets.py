"""The area budgets: each path has one area, and a run over twice a budget fails."""

from pathlib import Path

import pytest

from tests.area_budgets import AREA_OF_PATH, BUDGETS_S, area_of

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]


def test_every_line_of_the_table_names_an_area_with_a_budget() -> None:
    assert set(AREA_OF_PATH.values()) == set(BUDGETS_S)


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("tests/test_budgets.py", "foundation"),
        ("tests/unit/kit/test_errors.py", "foundation"),
        ("tests/unit/worker/scheduling/test_blocks.py", "engine"),
        ("tests/unit/worker/kernels/test_norm.py", "gpu"),
        ("tests/unit/workers/test_x.py", "foundation"),
    ],
)
def test_the_longest_matching_path_decides(path: str, area: str) -> None:
    assert area_of(path) == area


@pytest.mark.parametrize(
    ("budget_s", "outcome", "line"),
    [
        (10.0, pytest.ExitCode.OK, "foundation *of   10 s"),
        (0.15, pytest.ExitCode.OK, "foundation *WARNING: over its budget"),
        (0.01, pytest.ExitCode.TESTS_FAILED, "foundation *FAILURE: more than twice its budget"),
    ],
)
def test_a_warning_over_budget_and_a_failure_over_twice_it(
    pytester: pytest.Pytester, budget_s: float, outcome: pytest.ExitCode, line: str
) -> None:
    pytester.syspathinsert(ROOT)
    pytester.makeconftest(
        f"""
        import pytest
        from tests.area_budgets import AreaBudgets

        def pytest_configure(config):
            config.pluginmanager.register(AreaBudgets({{"foundation": {budget_s}}}))

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(report):
            report.duration = 0.2 if report.when == "call" else 0.0
        """
    )
    pytester.makepyfile("def test_anything(): pass")
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "no:xdist")
    result.stdout.fnmatch_lines([f"*{line}*"])
    assert result.ret == outcome
