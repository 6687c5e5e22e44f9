"""What every test run has: hypothesis without deadlines and repeatable, and the seconds of each area at the end."""

import pytest
from hypothesis import settings

from tests.area_budgets import AreaBudgets

# Shared cores make a deadline a coin toss. `make test` tries the same examples every time; `make test-slow` searches.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("markexpr")
    settings.load_profile("search" if chosen == "slow" else "suite")
    if not hasattr(config, "workerinput") and chosen not in ("slow", "compose"):  # those are long by intent
        config.pluginmanager.register(AreaBudgets(), "area-budgets")
